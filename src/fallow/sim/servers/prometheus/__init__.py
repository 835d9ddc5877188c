"""A pretend Prometheus: it remembers what the exporters of a pretend cluster showed, and answers what our own source
asks.

samples: what was scraped. promql: the questions that are known. server: the wire.
"""

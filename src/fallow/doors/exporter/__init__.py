"""The node exporter's door: the page of a scrape, who may see it, health, and the process that serves them.

It runs on every GPU node, so it is light: no numpy, no web framework, no client of the cluster unless that is used.
"""

"""The node exporter: collect what one node's GPU driver says, judge which processes hold memory and do nothing, expose it.

It runs on every GPU node, so it is light: no numpy, no web framework, no client of the cluster unless that is really used.
"""

"""Pause and resume of one workload, each a transaction: built (bodies), sent, and undone where it was half taken."""

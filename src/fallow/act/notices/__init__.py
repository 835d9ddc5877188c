"""Notices to owners: what they say (text), and what counts as said (delivery)."""

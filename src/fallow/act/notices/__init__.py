"""Notices to owners: what they say (text, facts; slack, letter, card lay it out), whom they reach
(route), by which wire (senders), and what counts as said (delivery)."""

"""The clouds that clusters run in, each in its own words; `exchange` is what they share.

A cloud hands out credentials that live for minutes: each `credentials` makes a Signer (clients/signing.py), which
whoever assembles hands to the client that needs it. What it is for (a service, a scope, a resource) is an argument.
Nothing here reads the environment or the clock.
"""

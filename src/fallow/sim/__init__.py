"""A pretend world: a cluster with its own clock and people, and servers through which the product meets it over
sockets."""

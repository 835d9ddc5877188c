"""A pretend world: a cluster with its own clock and people, and servers that show it over sockets."""

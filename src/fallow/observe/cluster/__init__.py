"""The cluster: a local copy of its objects, who owns whom, what is free, and all of it at one instant."""

"""The pretend cluster itself: its clock, nodes and workloads, what they do, whose they are, and its laws."""

"""What was recorded elsewhere, read into a world: published traces, and the history in the user's own Prometheus."""

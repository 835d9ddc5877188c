"""What the daemon serves over HTTP: its health and its metrics."""

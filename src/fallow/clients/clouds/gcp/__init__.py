"""Google Cloud."""

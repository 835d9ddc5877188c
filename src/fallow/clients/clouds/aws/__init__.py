"""Amazon Web Services."""

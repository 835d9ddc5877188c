"""The pretend world on the wire: each server speaks what a real one does, as far as the product and kubectl need it."""

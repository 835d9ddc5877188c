"""The pretend world on the wire: each server here speaks what a real one speaks, and no more than the product and
kubectl need."""

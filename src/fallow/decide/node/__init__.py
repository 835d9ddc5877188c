"""One node: which processes hold GPU memory and do nothing, and which pods have held which GPU since when."""

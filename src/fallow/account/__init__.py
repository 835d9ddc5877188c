"""The books: what a cycle amounted to, in numbers and in words."""

"""The eyes: their words into our nouns. What could not be seen is said, never guessed, and never turned into 0."""

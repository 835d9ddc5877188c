"""The wire: one module or folder per outside system, in that system's own words; they do not know each other."""

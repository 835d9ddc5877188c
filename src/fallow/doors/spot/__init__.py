"""The door of the spot node's watch: its metrics page, and the process. Small: nothing but Python's own library."""

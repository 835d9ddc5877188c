"""The hands: decisions become requests, and requests become outcomes. They never think: what to do was decided elsewhere."""

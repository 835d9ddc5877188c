"""The hands: decisions become requests, and requests become outcomes. They never think: that was done elsewhere."""

"""The order of things: one file per story, each a few steps long. A story holds no rule of its own."""

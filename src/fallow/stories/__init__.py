"""Order. One file per story, each five steps long: look, plan, act, account, tell.

A story holds no rule of its own and knows no other story. When it begins, how long it may take and whether it may act
is the loop's affair, which hands it a Turn; the node's story, in another process, is called by its own door.
"""

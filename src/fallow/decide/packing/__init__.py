"""Which node and which GPU a pod takes, so that the fewest GPUs are stranded.

Read in this order: `state` (what is free), `place` (the one choice everybody shares), `policies` (what makes a node good: a page each),
`fragments` (FGD), `prices` and `shadow` (SPP), `rehearse` (Auto), `replay` (a trace from beginning to end), `defrag` (one move back).
Pure: no clock, no files, no logging. Whole numbers wherever a choice hangs on them, so that two machines decide alike.
"""

"""The brain: (snapshot, now) -> verdicts and decisions of one concern. Pure: no I/O, no clock, no logging; it raises
for nothing.

    idle/      which workloads do nothing with their GPUs, and which step comes next with each
    node/      which processes of one node do nothing, and whose they are
    packing/   which node and GPU a pod takes, what is stranded, what to move
"""

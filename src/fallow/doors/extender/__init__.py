"""The scheduler's extender: kube-scheduler asks which of the nodes that have room are best for a GPU pod.

    wire   the scheduler's questions, into our words and back       advice what is known, and the answers
    study  which policy, and its prices, in a process of its own    app    the paths, as a bare ASGI application
    herald says which places are kept for pods that are moved       serve  who may ask, what is followed, the process
"""

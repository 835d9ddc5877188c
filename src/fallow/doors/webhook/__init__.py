"""The admission webhook: new GPU pods of a scope whose budget is spent are denied, or kept to cheap nodes; those that
need less than a whole GPU ask for a part of one.

    reviews        the API server's questions, into our words and back     judging  the rules of budgets
    share_reviews  the same, as sharing reads them                         sharing  the ladder of sharing
    app            the paths     wire  a connection                          serve    TLS, certificates that change
"""

"""What becomes of a BudgetPlan: people are told, the status of each budget is written, waiting pods go on.

    words    what a message says, for each channel     wires     the message on its way
    sending  each message once, tried again            statuses  of budgets and attributions      gates  of pods
"""

"""What has each budget come to: is it spent, who is told, what is restricted? `plan` is the entrance.

    period   when a budget's periods begin and end        scope    whose cost counts, and what to ask the books for
    alerts   when each alert fires and is resolved        enforce  exceeded for how long, overridden, restricting
    plan     all of it, for all budgets                   gates    which waiting pods may go on
"""

"""Idle workloads: a verdict for each, and the decisions that follow. The one entrance is plan.py.

    arrange.py    columns of numbers over pods, rows and workloads, kept while those are the same
    judge.py      is a GPU, a pod, a workload idle?             words.py      the same, in sentences
    rules.py      which rule is for whom, and what it leaves alone
    consent.py    acks and opt-outs                             courtesy.py   leave alone, tell, wait, or pause
    pauses.py     what becomes of a pause                       upkeep.py     marks put in order, whatever the verdict
    standings.py  courtesy's answer for each idle one, and what freeze and confirmation leave of it
    choice.py     who is paused now                             counts.py     the cycle in numbers
    brakes.py     how fast: caps, freeze                        pressure.py   does anybody wait for these GPUs?
"""

"""Idle workloads: a verdict for each, and the decisions that follow. The one entrance is plan.py.

    draft.py      a plan in the making: who takes which step, and why the others wait
    arrange.py    columns of numbers over pods, rows and workloads, kept while those are the same
    judge.py      is a GPU, a pod, a workload idle?             words.py     the same, in sentences
    rules.py      which rule is for whom, and what it leaves alone
    classify.py   training, inference, notebook or batch
    consent.py    acks and opt-outs                             courtesy.py  leave alone, tell, wait, or pause
    pauses.py     what becomes of a pause
    brakes.py     how fast: order, caps, freeze                 pressure.py  does anybody wait for these GPUs?
"""

"""When nodes are added and released, how many, of which kind. This page is the one entrance.

Read in this order: `foresight` (how many GPUs will be wanted).
Pure: no clock, no files, no logging.
"""

from fallow.decide.scaling.foresight import HISTORY, WEEK, Floats, Foresight, Guesser, Ints, foresee, rehearse

__all__ = ["HISTORY", "WEEK", "Floats", "Foresight", "Guesser", "Ints", "foresee", "rehearse"]

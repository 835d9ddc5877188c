"""Where our programs begin: Ctrl-C is taken before anything else is imported, for that is when people press it.

In: the name of a program. Out: it runs. Ctrl-C ends it with 130 and without a word, from the first line here on;
SIGTERM with 143, until whoever has more to end takes it: the first process of a container would not hear it else.
Invariant: nothing but what Python has loaded by itself is imported at the top.
"""

import gc
import os
import signal
import sys

INTERRUPTED, TERMINATED = 130, 143


def fallow() -> None:
    """`fallow` and `kubectl fallow`."""
    _enter("main", "fallow")


def fallow_on_nodes() -> None:
    """`fallow` in the image of what runs on nodes."""
    _enter("main", "fallow_on_nodes")


def gpu_pruner() -> None:
    _enter("pruner", "gpu_pruner")


def gpu_autoscaler() -> None:
    _enter("main", "gpu_autoscaler")


def gpu_idle_exporter() -> None:
    _enter("exporter", "gpu_idle_exporter")


def _enter(module: str, program: str) -> None:
    """Whoever had us started with Ctrl-C ignored (nohup, a script's background) keeps it ignored."""
    heeds = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if heeds:
        signal.signal(signal.SIGINT, _leave)
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _leave)
    import importlib

    door = getattr(importlib.import_module(f"fallow.doors.cli.{module}"), program)
    try:
        if heeds:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        door()
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    finally:
        gc.freeze()  # or Python looks several times through all that is left: a seventh of a look at 10,000 pods


def _leave(number: int, _: object) -> None:
    """At once: an exception in the middle of an import could be swallowed, or told about."""
    os._exit(INTERRUPTED if number == signal.SIGINT else TERMINATED)

"""What we were asked for: every flag, and the few environment variables, read once into one frozen tree.

In: flag values as text (the CLI door collects them by the table FLAGS) and the environment. Out: Settings, valid in
full; for the node exporter, settings.exporter.Options. Whatever is wrong raises UsageError, one sentence that names the
flag, before anything is contacted. This is the only package that reads the environment. Secrets print as `***`.

    readers  texts into values    flags     what a flag is                    tree   the settings, frozen
    config_file  the same from a file
    idle     gpu-pruner's flags   exporter  variables of the node exporter    cost, serving, telling   tables of theirs
"""

import os
from collections.abc import Mapping

from fallow.settings import flags, idle, readers, tree

Flag = flags.Flag
Settings = tree.Settings
PrometheusSettings = tree.PrometheusSettings
UsageError = readers.UsageError
LETTERS = readers.LETTERS
PROTECTED_NAMESPACES = idle.PROTECTED_NAMESPACES
FLAGS, read_flags, log_level = idle.FLAGS, idle.read_flags, idle.log_level
LOOK, RULES, ACT, TELL, SERVE, BRAKES, SOURCE, COST, COST_STORE, COST_DOORS, BUDGETS, SHARING, SCALING, RUNNING = (
    idle.GROUPS
)


def environment() -> Mapping[str, str]:
    """The process environment, read here and nowhere else."""
    return dict(os.environ)

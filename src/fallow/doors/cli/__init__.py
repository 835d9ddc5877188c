"""The commands: `fallow` with its verbs, and the drop-in `gpu-pruner`."""

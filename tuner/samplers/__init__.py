"""Samplers by name: one file each, offering an Optuna sampler for a seed and a space's candidates."""

DEFAULT = "lfbo"

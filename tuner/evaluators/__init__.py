"""Evaluators by name: a GPU, the cost model, or a recorded landscape."""

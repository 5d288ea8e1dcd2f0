"""Stands in for vLLM on the CPU."""

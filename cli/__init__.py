"""The command line: each command parses, makes one library call and prints."""

from ._main import main

__all__ = ["main"]

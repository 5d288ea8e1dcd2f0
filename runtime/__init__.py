"""Who uses the winners: a table that a serving engine loads and asks for configs.

Importing this package imports the standard library only: no torch, numpy or SQLAlchemy.
"""

from __future__ import annotations

from .table import Choice, Table, load

__all__ = ["Choice", "Table", "load"]

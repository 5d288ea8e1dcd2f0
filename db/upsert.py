"""INSERTs that say what happens where a key is there already; both dialects spell them alike."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from sqlalchemy import Table
from sqlalchemy.dialects.postgresql import insert as postgresql_insert
from sqlalchemy.dialects.sqlite import insert as sqlite_insert

# Keys of a trial and of a winner, in the order of their unique constraints.
TRIAL_KEY = (
    "problem_id",
    "unit",
    "config",
    "kernel",
    "source_hash",
    "silicon_id",
    "toolchain_id",
    "policy",
)
WINNER_KEY = ("sweep_id", "problem_id", "unit")


def insert_missing(dialect: str, table: Table, key: Collection[str] = ("key",)) -> Any:
    """Return an INSERT that leaves a row alone whose key is there."""
    return _counting(_insert(dialect, table).on_conflict_do_nothing(index_elements=key))


def upsert(dialect: str, table: Table, key: Collection[str], *, equal: bool) -> Any:
    """Return an INSERT that replaces a row of weaker, or also of `equal`, evidence."""
    statement = _insert(dialect, table)
    new, old = statement.excluded.evidence, table.c.evidence
    names = [c.name for c in table.c if c.name not in ("id", *key)]
    return _counting(
        statement.on_conflict_do_update(
            index_elements=key,
            set_={name: statement.excluded[name] for name in names},
            where=new >= old if equal else new > old,
        )
    )


def _insert(dialect: str, table: Table) -> Any:
    return sqlite_insert(table) if dialect == "sqlite" else postgresql_insert(table)


def _counting(statement: Any) -> Any:
    # Without the option SQLAlchemy forgets how many rows an INSERT wrote.
    return statement.inline().execution_options(preserve_rowcount=True)

"""Indexes for databases of a million trials: counting them, and removing some.

Frozen: a later change of db/schema.py is a later migration.
"""

from __future__ import annotations

from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

_INDEXES = (
    ("ix_trials_place", "trials", ["kernel", "silicon_id", "toolchain_id", "evidence"]),
    ("ix_trials_compile_id", "trials", ["compile_id"]),
    ("ix_winners_compile_id", "winners", ["compile_id"]),
)


def upgrade() -> None:
    """Make the indexes."""
    for name, table, columns in _INDEXES:
        op.create_index(name, table, columns, unique=False)


def downgrade() -> None:
    """Drop the indexes."""
    for name, table, _ in _INDEXES:
        op.drop_index(name, table)

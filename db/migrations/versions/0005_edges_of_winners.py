"""Where a winner's bucket ends.

Frozen: a later change of db/schema.py is a later migration.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column; winners of older versions keep none."""
    op.add_column("winners", sa.Column("edge", sa.Text(), nullable=True))


def downgrade() -> None:
    """Drop the column."""
    op.drop_column("winners", "edge")

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
    """Add the columns; winners of older versions keep none."""
    op.add_column("winners", sa.Column("edge_tokens", sa.Integer(), nullable=True))
    op.add_column("winners", sa.Column("edge_evidence", sa.SmallInteger(), nullable=True))


def downgrade() -> None:
    """Drop the columns."""
    op.drop_column("winners", "edge_evidence")
    op.drop_column("winners", "edge_tokens")

"""Where the seconds of a trial went.

Frozen: a later change of db/schema.py is a later migration.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column; trials of older versions keep none."""
    op.add_column("trials", sa.Column("spent", sa.Text(), nullable=True))


def downgrade() -> None:
    """Drop the column."""
    op.drop_column("trials", "spent")

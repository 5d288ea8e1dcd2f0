"""Seeds from other tuners' files, and the sets that sweeps were held to.

Frozen: a later change of db/schema.py is a later migration.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Make both tables."""
    op.create_table(
        "portfolios",
        sa.Column("id", _ID, autoincrement=True, nullable=False),
        sa.Column("sweep_id", _ID, nullable=False),
        sa.Column("record", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["sweep_id"], ["sweeps.id"], name="fk_portfolios_sweep_id"),
        sa.PrimaryKeyConstraint("id", name="pk_portfolios"),
        sa.UniqueConstraint("sweep_id", name="uq_portfolios_sweep_id"),
    )
    op.create_table(
        "seeds",
        sa.Column("id", _ID, autoincrement=True, nullable=False),
        sa.Column("kernel", sa.String(length=100), nullable=False),
        sa.Column("source", sa.String(length=32), nullable=False),
        sa.Column("file", sa.Text(), nullable=False),
        sa.Column("triton", sa.Text(), nullable=False),
        sa.Column("device", sa.Text(), nullable=False),
        sa.Column("experts", sa.Integer(), nullable=False),
        sa.Column("intermediate", sa.Integer(), nullable=False),
        sa.Column("weights", sa.String(length=32), nullable=False),
        sa.Column("tokens", sa.Integer(), nullable=False),
        sa.Column("unit", sa.String(length=16), nullable=False),
        sa.Column("config", sa.Text(), nullable=False),
        sa.Column("time_us", sa.Double(), nullable=True),
        sa.Column("imported_at", sa.DateTime(), server_default=sa.func.now(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_seeds"),
    )
    op.create_index("ix_seeds_kernel", "seeds", ["kernel", "weights"], unique=False)


def downgrade() -> None:
    """Drop both tables."""
    op.drop_table("seeds")
    op.drop_table("portfolios")

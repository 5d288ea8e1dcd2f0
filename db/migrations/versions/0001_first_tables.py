"""The first tables.

Frozen: a later change of db/schema.py is a later migration.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Make the tables, those that are pointed at first."""
    _create_silicons()
    _create_toolchains()
    _create_problems()
    _create_compiles()
    _create_sweeps()
    _create_trials()
    _create_winners()


def downgrade() -> None:
    """Drop the tables, those that point first."""
    for table in ("winners", "trials", "sweeps", "compiles", "problems", "toolchains", "silicons"):
        op.drop_table(table)


def _create_silicons() -> None:
    op.create_table(
        "silicons",
        sa.Column("id", _ID, autoincrement=True, nullable=False),
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("arch", sa.Integer(), nullable=False),
        sa.Column("sms", sa.Integer(), nullable=False),
        sa.Column("memory_bytes", sa.BigInteger(), nullable=False),
        sa.Column("shared_limit_bytes", sa.BigInteger(), nullable=False),
        sa.Column("power_limit_w", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_silicons"),
        sa.UniqueConstraint("key", name="uq_silicons_key"),
    )


def _create_toolchains() -> None:
    op.create_table(
        "toolchains",
        sa.Column("id", _ID, autoincrement=True, nullable=False),
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("record", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_toolchains"),
        sa.UniqueConstraint("key", name="uq_toolchains_key"),
    )


def _create_problems() -> None:
    op.create_table(
        "problems",
        sa.Column("id", _ID, autoincrement=True, nullable=False),
        sa.Column("key", sa.String(length=64), nullable=False),
        sa.Column("tokens", sa.Integer(), nullable=False),
        sa.Column("record", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_problems"),
        sa.UniqueConstraint("key", name="uq_problems_key"),
    )


def _create_compiles() -> None:
    op.create_table(
        "compiles",
        sa.Column("id", _ID, autoincrement=True, nullable=False),
        sa.Column("key", sa.String(length=64), nullable=False),
        sa.Column("cubin_sha256", sa.String(length=64), nullable=False),
        sa.Column("target", sa.Integer(), nullable=False),
        sa.Column("record", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_compiles"),
        sa.UniqueConstraint("key", name="uq_compiles_key"),
    )
    op.create_index("ix_compiles_cubin_sha256", "compiles", ["cubin_sha256"], unique=False)


def _create_sweeps() -> None:
    op.create_table(
        "sweeps",
        sa.Column("id", _ID, autoincrement=True, nullable=False),
        sa.Column("key", sa.String(length=64), nullable=False),
        sa.Column("fingerprint", sa.String(length=64), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("request", sa.Text(), nullable=False),
        sa.Column("counts", sa.Text(), nullable=False),
        sa.Column("started_at", sa.DateTime(), server_default=sa.func.now(), nullable=False),
        sa.Column("ended_at", sa.DateTime(), nullable=True),
        sa.CheckConstraint("state IN ('running', 'stopped', 'finished')", name="ck_sweeps_state"),
        sa.PrimaryKeyConstraint("id", name="pk_sweeps"),
        sa.UniqueConstraint("key", name="uq_sweeps_key"),
    )
    op.create_index("ix_sweeps_fingerprint", "sweeps", ["fingerprint"], unique=False)


def _create_trials() -> None:
    op.create_table(
        "trials",
        sa.Column("id", _ID, autoincrement=True, nullable=False),
        sa.Column("sweep_id", _ID, nullable=False),
        sa.Column("kernel", sa.String(length=100), nullable=False),
        sa.Column("source_hash", sa.String(length=64), nullable=False),
        sa.Column("problem_id", _ID, nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("unit", sa.String(length=16), nullable=False),
        sa.Column("config", sa.Text(), nullable=False),
        sa.Column("silicon_id", _ID, nullable=False),
        sa.Column("silicon_name", sa.Text(), nullable=False),
        sa.Column("toolchain_id", _ID, nullable=False),
        sa.Column("policy", sa.String(length=100), nullable=False),
        sa.Column("evidence", sa.SmallInteger(), nullable=False),
        sa.Column("time_us", sa.Double(), nullable=True),
        sa.Column("low_us", sa.Double(), nullable=True),
        sa.Column("high_us", sa.Double(), nullable=True),
        sa.Column("compile_id", _ID, nullable=True),
        sa.Column("prediction", sa.Text(), nullable=True),
        sa.Column("measurement", sa.Text(), nullable=True),
        sa.Column("why", sa.String(length=32), nullable=True),
        sa.Column("detail", sa.Text(), nullable=True),
        sa.Column("error", sa.Double(), nullable=True),
        sa.CheckConstraint("(time_us IS NULL) <> (why IS NULL)", name="ck_trials_outcome"),
        sa.ForeignKeyConstraint(["compile_id"], ["compiles.id"], name="fk_trials_compile_id"),
        sa.ForeignKeyConstraint(["problem_id"], ["problems.id"], name="fk_trials_problem_id"),
        sa.ForeignKeyConstraint(["silicon_id"], ["silicons.id"], name="fk_trials_silicon_id"),
        sa.ForeignKeyConstraint(["sweep_id"], ["sweeps.id"], name="fk_trials_sweep_id"),
        sa.ForeignKeyConstraint(
            ["toolchain_id"], ["toolchains.id"], name="fk_trials_toolchain_id"
        ),
        sa.PrimaryKeyConstraint("id", name="pk_trials"),
        sa.UniqueConstraint(
            "problem_id",
            "unit",
            "config",
            "kernel",
            "source_hash",
            "silicon_id",
            "toolchain_id",
            "policy",
            name="uq_trials_key",
        ),
    )
    op.create_index("ix_trials_sweep_id", "trials", ["sweep_id"], unique=False)


def _create_winners() -> None:
    op.create_table(
        "winners",
        sa.Column("id", _ID, autoincrement=True, nullable=False),
        sa.Column("sweep_id", _ID, nullable=False),
        sa.Column("kernel", sa.String(length=100), nullable=False),
        sa.Column("source_hash", sa.String(length=64), nullable=False),
        sa.Column("problem_id", _ID, nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("unit", sa.String(length=16), nullable=False),
        sa.Column("config", sa.Text(), nullable=False),
        sa.Column("silicon_id", _ID, nullable=False),
        sa.Column("silicon_name", sa.Text(), nullable=False),
        sa.Column("toolchain_id", _ID, nullable=False),
        sa.Column("policy", sa.String(length=100), nullable=False),
        sa.Column("evidence", sa.SmallInteger(), nullable=False),
        sa.Column("time_us", sa.Double(), nullable=False),
        sa.Column("low_us", sa.Double(), nullable=False),
        sa.Column("high_us", sa.Double(), nullable=False),
        sa.Column("default_config", sa.Text(), nullable=False),
        sa.Column("default_time_us", sa.Double(), nullable=False),
        sa.Column("compile_id", _ID, nullable=True),
        sa.Column("parts", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["compile_id"], ["compiles.id"], name="fk_winners_compile_id"),
        sa.ForeignKeyConstraint(["problem_id"], ["problems.id"], name="fk_winners_problem_id"),
        sa.ForeignKeyConstraint(["silicon_id"], ["silicons.id"], name="fk_winners_silicon_id"),
        sa.ForeignKeyConstraint(["sweep_id"], ["sweeps.id"], name="fk_winners_sweep_id"),
        sa.ForeignKeyConstraint(
            ["toolchain_id"], ["toolchains.id"], name="fk_winners_toolchain_id"
        ),
        sa.PrimaryKeyConstraint("id", name="pk_winners"),
        sa.UniqueConstraint("sweep_id", "problem_id", "unit", name="uq_winners_key"),
    )
    op.create_index("ix_winners_problem_id", "winners", ["problem_id", "unit"], unique=False)

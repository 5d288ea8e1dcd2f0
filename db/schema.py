"""The tables, in SQLAlchemy 2 core: the same on SQLite and PostgreSQL.

    silicons, toolchains, problems     what a time belongs to, each stored once
    compiles                           compile reports, shared by the trials of one variant
    sweeps                             who asked for what, and how it ended
    trials                             one row a config, unit, problem, silicon, toolchain, source
                                       and policy
    winners                            choices over trials
    portfolios                         sweeps whose winners were held to a small set of configs
    seeds                              configs that others found good: starting points, no winners

Names of models and GPUs are no part of a key (two names may mean one problem), so they stand on
the rows. Records go into JSON text where nothing selects on them, into columns where something
does. The version of the tables is Alembic's, in the table `rubin_tune_version`, which also marks a
database as ours.
"""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    Column,
    DateTime,
    Double,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    SmallInteger,
    String,
    Table,
    Text,
    UniqueConstraint,
    func,
)

# Revisions of db/migrations/versions, oldest first; the last is what this version writes.
REVISIONS = ("0001", "0002", "0003", "0004", "0005")
VERSION_TABLE = "rubin_tune_version"
# "rtun" in ASCII: SQLite files of ours carry it in their header (PRAGMA application_id).
APPLICATION_ID = 0x7274756E

_NAMING = {
    "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "ck": "ck_%(table_name)s_%(constraint_name)s",
    "fk": "fk_%(table_name)s_%(column_0_name)s",
    "pk": "pk_%(table_name)s",
}
metadata = MetaData(naming_convention=_NAMING)
# SQLite numbers rows only in a column that is exactly INTEGER.
_Id = BigInteger().with_variant(Integer, "sqlite")


def _id() -> Column[int]:
    return Column("id", _Id, primary_key=True, autoincrement=True)


def _points_at(table: str, *, nullable: bool = False) -> Column[int]:
    name = f"{table.removesuffix('s')}_id"
    return Column(name, _Id, ForeignKey(f"{table}.id"), nullable=nullable)


silicons = Table(
    "silicons",
    metadata,
    _id(),
    Column("key", Text, nullable=False, unique=True),
    Column("arch", Integer, nullable=False),
    Column("sms", Integer, nullable=False),
    Column("memory_bytes", BigInteger, nullable=False),
    Column("shared_limit_bytes", BigInteger, nullable=False),
    Column("power_limit_w", Integer, nullable=False),
)
toolchains = Table(
    "toolchains",
    metadata,
    _id(),
    Column("key", Text, nullable=False, unique=True),
    Column("record", Text, nullable=False),
)
problems = Table(
    "problems",
    metadata,
    _id(),
    Column("key", String(64), nullable=False, unique=True),
    Column("tokens", Integer, nullable=False),
    Column("record", Text, nullable=False),
)
compiles = Table(
    "compiles",
    metadata,
    _id(),
    Column("key", String(64), nullable=False, unique=True),
    Column("cubin_sha256", String(64), nullable=False, index=True),
    Column("target", Integer, nullable=False),
    Column("record", Text, nullable=False),
)
sweeps = Table(
    "sweeps",
    metadata,
    _id(),
    Column("key", String(64), nullable=False, unique=True),
    Column("fingerprint", String(64), nullable=False, index=True),
    Column("state", String(16), nullable=False),
    Column("request", Text, nullable=False),
    Column("counts", Text, nullable=False),
    Column("started_at", DateTime, nullable=False, server_default=func.now()),
    Column("ended_at", DateTime),
    CheckConstraint("state IN ('running', 'stopped', 'finished')", name="state"),
)
trials = Table(
    "trials",
    metadata,
    _id(),
    _points_at("sweeps"),
    Column("kernel", String(100), nullable=False),
    Column("source_hash", String(64), nullable=False),
    _points_at("problems"),
    Column("model", Text, nullable=False),
    Column("unit", String(16), nullable=False),
    Column("config", Text, nullable=False),
    _points_at("silicons"),
    Column("silicon_name", Text, nullable=False),
    _points_at("toolchains"),
    Column("policy", String(100), nullable=False),
    Column("evidence", SmallInteger, nullable=False),
    Column("time_us", Double),
    Column("low_us", Double),
    Column("high_us", Double),
    _points_at("compiles", nullable=True),
    Column("prediction", Text),
    Column("measurement", Text),
    Column("why", String(32)),
    Column("detail", Text),
    Column("error", Double),
    Column("spent", Text),
    UniqueConstraint(
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
    CheckConstraint("(time_us IS NULL) <> (why IS NULL)", name="outcome"),
)
Index("ix_trials_sweep_id", trials.c.sweep_id)
# What `db stats` counts; SQLite reads the index alone, which is a thirtieth of the rows.
Index(
    "ix_trials_place",
    trials.c.kernel,
    trials.c.silicon_id,
    trials.c.toolchain_id,
    trials.c.evidence,
)
# Removing a compile report asks who points at it.
Index("ix_trials_compile_id", trials.c.compile_id)
winners = Table(
    "winners",
    metadata,
    _id(),
    _points_at("sweeps"),
    Column("kernel", String(100), nullable=False),
    Column("source_hash", String(64), nullable=False),
    _points_at("problems"),
    Column("model", Text, nullable=False),
    Column("unit", String(16), nullable=False),
    Column("config", Text, nullable=False),
    _points_at("silicons"),
    Column("silicon_name", Text, nullable=False),
    _points_at("toolchains"),
    Column("policy", String(100), nullable=False),
    Column("evidence", SmallInteger, nullable=False),
    Column("time_us", Double, nullable=False),
    Column("low_us", Double, nullable=False),
    Column("high_us", Double, nullable=False),
    Column("default_config", Text, nullable=False),
    Column("default_time_us", Double, nullable=False),
    _points_at("compiles", nullable=True),
    Column("parts", Text, nullable=False),
    Column("edge_tokens", Integer),
    Column("edge_evidence", SmallInteger),
    UniqueConstraint("sweep_id", "problem_id", "unit", name="uq_winners_key"),
)
Index("ix_winners_problem_id", winners.c.problem_id, winners.c.unit)
Index("ix_winners_compile_id", winners.c.compile_id)
portfolios = Table(
    "portfolios",
    metadata,
    _id(),
    Column("sweep_id", _Id, ForeignKey("sweeps.id"), nullable=False, unique=True),
    Column("record", Text, nullable=False),
)
seeds = Table(
    "seeds",
    metadata,
    _id(),
    Column("kernel", String(100), nullable=False),
    Column("source", String(32), nullable=False),
    Column("file", Text, nullable=False),
    Column("triton", Text, nullable=False),
    Column("device", Text, nullable=False),
    Column("experts", Integer, nullable=False),
    Column("intermediate", Integer, nullable=False),
    Column("weights", String(32), nullable=False),
    Column("tokens", Integer, nullable=False),
    Column("unit", String(16), nullable=False),
    Column("config", Text, nullable=False),
    Column("time_us", Double),
    Column("imported_at", DateTime, nullable=False, server_default=func.now()),
)
Index("ix_seeds_kernel", seeds.c.kernel, seeds.c.weights)

"""The store on SQLite and PostgreSQL: the same contract, and what only files can do wrong."""

from __future__ import annotations

import os
from pathlib import Path
from uuid import uuid4

import pytest
from sqlalchemy import create_engine, make_url, text

from rubin_tune.db.testing import StoreContract

POSTGRES = os.environ.get("RUBIN_TUNE_TEST_POSTGRES", "")
needs_postgres = pytest.mark.skipif(
    not POSTGRES, reason="RUBIN_TUNE_TEST_POSTGRES names no server (see .ci/postgres.sh)"
)


class TestSqlite(StoreContract):
    """SQLite."""

    @pytest.fixture
    def target(self, tmp_path: Path) -> str:
        return str(tmp_path / "our.db")


@pytest.fixture
def postgres():
    """Return the URL of a database of its own."""
    url, name = make_url(POSTGRES), f"rt_{uuid4().hex[:12]}"
    engine = create_engine(url.set(drivername="postgresql+psycopg"), isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.execute(text(f"CREATE DATABASE {name}"))
    yield url.set(database=name).render_as_string(hide_password=False)
    with engine.connect() as connection:
        connection.execute(text(f"DROP DATABASE {name} WITH (FORCE)"))
    engine.dispose()


@needs_postgres
class TestPostgresql(StoreContract):
    """PostgreSQL."""

    @pytest.fixture
    def target(self, postgres: str) -> str:
        return postgres

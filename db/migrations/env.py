"""Run by Alembic: migrate over the connection that `db.store` hands in, inside its transaction."""

from __future__ import annotations

from alembic import context

from rubin_tune.db.schema import VERSION_TABLE, metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    version_table=VERSION_TABLE,
    render_as_batch=True,
)
with context.begin_transaction():
    context.run_migrations()

"""Run by Alembic: migrates on the connection that ``tables.migrate`` gives it, within its transaction."""

from __future__ import annotations

from alembic import context

from schedulemesh.store.history.schema import metadata
from schedulemesh.store.history.tables import VERSION_TABLE

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    version_table=VERSION_TABLE,
)
context.run_migrations()

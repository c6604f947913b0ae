"""Alembic's entry: migrations run on the connection that `persistence.migrate` passes in."""

from __future__ import annotations

from alembic import context

from persistence.schema import metadata

context.configure(connection=context.config.attributes["connection"], target_metadata=metadata)
with context.begin_transaction():
    context.run_migrations()

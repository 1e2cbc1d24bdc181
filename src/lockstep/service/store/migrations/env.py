"""Alembic's entry: runs the migrations on the connection that `open_database` hands over."""

from alembic import context

from lockstep.service.store.tables import METADATA

connection = context.config.attributes["connection"]
context.configure(connection=connection, target_metadata=METADATA, render_as_batch=True)
with context.begin_transaction():
    context.run_migrations()

"""What long queues of jobs need: indexes, and the last event that each job's webhook is to be notified of."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

CHANGES = (
    *("enqueued", "preparing", "started", "restarted", "requeued"),
    *("succeeded", "failed", "cancel_requested", "cancelled"),
)


def upgrade() -> None:
    """Makes the column and the indexes."""
    op.add_column("webhooks", sa.Column("event_seq", sa.Integer(), nullable=False, server_default="0"))
    webhooks = sa.table("webhooks", sa.column("job_uid"), sa.column("event_seq"))
    events = sa.table("job_events", sa.column("job_uid"), sa.column("kind"), sa.column("seq"))
    last = sa.select(sa.func.coalesce(sa.func.max(events.c.seq), 0)).where(
        events.c.job_uid == webhooks.c.job_uid, events.c.kind.in_(CHANGES)
    )
    op.execute(webhooks.update().where(webhooks.c.job_uid.is_not(None)).values(event_seq=last.scalar_subquery()))
    for name, table, columns, condition in (
        ("ix_webhooks_behind", "webhooks", ["next_time_s"], "event_seq > seq"),
        ("ix_jobs_limited_wait", "jobs", ["state", "max_wait_time_s"], "max_wait_time_s IS NOT NULL"),
        ("ix_jobs_awaiting_machines", "jobs", ["state", "provisioning_time_s"], "provisioning_time_s IS NOT NULL"),
    ):
        where = sa.text(condition)
        op.create_index(name, table, columns, unique=False, sqlite_where=where, postgresql_where=where)
    op.create_index(op.f("ix_jobs_kind_state"), "jobs", ["kind", "state"], unique=False)

"""Webhooks that jobs name themselves, and how far each has been told."""

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Makes the table."""
    op.create_table(
        "job_webhooks",
        sa.Column("job_uid", sa.String(length=32), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("sealed", sa.LargeBinary(), nullable=False),
        sa.Column("place", sa.Text(), nullable=False),
        sa.Column("secret", sa.String(length=64), nullable=True),
        sa.Column("states", sa.JSON(), nullable=False),
        sa.Column("seq", sa.Integer(), nullable=False),
        sa.Column("num_failures", sa.Integer(), nullable=False),
        sa.Column("num_dropped", sa.Integer(), nullable=False),
        sa.Column("next_time_s", sa.Float(), nullable=True),
        sa.Column("problem", sa.Text(), nullable=True),
        sa.Column("since_s", sa.Float(), nullable=True),
        sa.ForeignKeyConstraint(["job_uid"], ["jobs.uid"], name=op.f("fk_job_webhooks_job_uid_jobs")),
        sa.PrimaryKeyConstraint("job_uid", "number", name=op.f("pk_job_webhooks")),
    )
    op.create_index(op.f("ix_job_webhooks_next_time_s"), "job_webhooks", ["next_time_s"])


def downgrade() -> None:
    """Takes it away."""
    op.drop_table("job_webhooks")

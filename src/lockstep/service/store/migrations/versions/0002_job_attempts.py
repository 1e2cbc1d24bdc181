"""Each start of a job's gang by itself, and why it ended."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Makes the table and the columns."""
    op.create_table(
        "job_attempts",
        sa.Column("job_uid", sa.String(length=32), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("start_time_s", sa.Float(), nullable=True),
        sa.Column("end_time_s", sa.Float(), nullable=False),
        sa.Column("end_reason", sa.Text(), nullable=True),
        sa.ForeignKeyConstraint(["job_uid"], ["jobs.uid"], name=op.f("fk_job_attempts_job_uid_jobs")),
        sa.PrimaryKeyConstraint("job_uid", "attempt", name=op.f("pk_job_attempts")),
    )
    op.add_column("jobs", sa.Column("run_start_time_s", sa.Float(), nullable=True))
    op.add_column("jobs", sa.Column("end_reason", sa.Text(), nullable=True))
    op.add_column("jobs", sa.Column("num_restarts", sa.Integer(), nullable=False, server_default="0"))
    op.drop_column("jobs", "cancel_requested")
    op.execute("UPDATE jobs SET run_start_time_s = start_time_s")


def downgrade() -> None:
    """Takes them away."""
    op.add_column("jobs", sa.Column("cancel_requested", sa.Boolean(), nullable=False, server_default=sa.false()))
    op.drop_column("jobs", "num_restarts")
    op.drop_column("jobs", "end_reason")
    op.drop_column("jobs", "run_start_time_s")
    op.drop_table("job_attempts")

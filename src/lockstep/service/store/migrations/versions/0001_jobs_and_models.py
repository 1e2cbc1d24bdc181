"""Jobs, their events, models, versions and operations."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Makes the tables."""
    op.create_table(
        "jobs",
        sa.Column("uid", sa.String(length=32), nullable=False),
        sa.Column("project", sa.String(length=128), nullable=False),
        sa.Column("job_id", sa.String(length=128), nullable=False),
        sa.Column("training_input", sa.JSON(), nullable=False),
        sa.Column("labels", sa.JSON(), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("priority", sa.Integer(), nullable=False),
        sa.Column("max_wait_time_s", sa.Float(), nullable=True),
        sa.Column("create_time_s", sa.Float(), nullable=False),
        sa.Column("start_time_s", sa.Float(), nullable=True),
        sa.Column("end_time_s", sa.Float(), nullable=True),
        sa.Column("error_message", sa.Text(), nullable=True),
        sa.Column("cancel_requested", sa.Boolean(), nullable=False),
        sa.Column("simulated", sa.Boolean(), nullable=False),
        sa.Column("gang_order", sa.JSON(), nullable=True),
        sa.Column("gang_released", sa.Boolean(), nullable=False),
        sa.Column("replicas", sa.JSON(), nullable=False),
        sa.Column("bill", sa.JSON(), nullable=True),
        sa.Column("outputs", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("uid", name=op.f("pk_jobs")),
        sa.UniqueConstraint("project", "job_id", name=op.f("uq_jobs_project_job_id")),
    )
    op.create_index(op.f("ix_jobs_create_time_s"), "jobs", ["create_time_s"], unique=False)
    op.create_index(op.f("ix_jobs_gang_released"), "jobs", ["gang_released"], unique=False)
    op.create_index(
        op.f("ix_jobs_state_priority_create_time_s_uid"),
        "jobs",
        ["state", "priority", "create_time_s", "uid"],
        unique=False,
    )
    op.create_table(
        "models",
        sa.Column("project", sa.String(length=128), nullable=False),
        sa.Column("name", sa.String(length=128), nullable=False),
        sa.Column("description", sa.Text(), nullable=False),
        sa.Column("labels", sa.JSON(), nullable=False),
        sa.Column("default_version", sa.String(length=128), nullable=True),
        sa.Column("create_time_s", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("project", "name", name=op.f("pk_models")),
    )
    op.create_table(
        "operations",
        sa.Column("name", sa.String(length=64), nullable=False),
        sa.Column("project", sa.String(length=128), nullable=False),
        sa.Column("kind", sa.String(length=32), nullable=False),
        sa.Column("model", sa.String(length=128), nullable=False),
        sa.Column("version", sa.String(length=128), nullable=True),
        sa.Column("create_time_s", sa.Float(), nullable=False),
        sa.Column("end_time_s", sa.Float(), nullable=True),
        sa.Column("error_message", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("name", "project", name=op.f("pk_operations")),
    )
    op.create_table(
        "versions",
        sa.Column("project", sa.String(length=128), nullable=False),
        sa.Column("model", sa.String(length=128), nullable=False),
        sa.Column("name", sa.String(length=128), nullable=False),
        sa.Column("description", sa.Text(), nullable=False),
        sa.Column("labels", sa.JSON(), nullable=False),
        sa.Column("deployment_uri", sa.Text(), nullable=False),
        sa.Column("machine_type", sa.String(length=64), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("error_message", sa.Text(), nullable=True),
        sa.Column("create_time_s", sa.Float(), nullable=False),
        sa.Column("server", sa.JSON(), nullable=True),
        sa.Column("server_ready_time_s", sa.Float(), nullable=True),
        sa.Column("server_end_time_s", sa.Float(), nullable=True),
        sa.Column("num_restarts", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("project", "model", "name", name=op.f("pk_versions")),
    )
    op.create_index(op.f("ix_versions_state"), "versions", ["state"], unique=False)
    op.create_table(
        "job_events",
        sa.Column("seq", sa.Integer(), autoincrement=True, nullable=False),
        sa.Column("job_uid", sa.String(length=32), nullable=False),
        sa.Column("time_s", sa.Float(), nullable=False),
        sa.Column("kind", sa.String(length=32), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("detail", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["job_uid"], ["jobs.uid"], name=op.f("fk_job_events_job_uid_jobs")),
        sa.PrimaryKeyConstraint("seq", name=op.f("pk_job_events")),
    )
    op.create_index(op.f("ix_job_events_job_uid"), "job_events", ["job_uid"], unique=False)

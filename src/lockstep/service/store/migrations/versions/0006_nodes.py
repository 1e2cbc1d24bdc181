"""The ledger of nodes, and what a job that waits for machines has tried."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Makes the table and the columns."""
    op.create_table(
        "nodes",
        sa.Column("name", sa.String(length=64), nullable=False),
        sa.Column("slot", sa.String(length=64), nullable=False),
        sa.Column("node_type", sa.String(length=64), nullable=False),
        sa.Column("asked_for", sa.String(length=32), nullable=True),
        sa.Column("asked_time_s", sa.Float(), nullable=False),
        sa.Column("up_time_s", sa.Float(), nullable=True),
        sa.Column("ready_time_s", sa.Float(), nullable=True),
        sa.Column("idle_time_s", sa.Float(), nullable=True),
        sa.Column("released_time_s", sa.Float(), nullable=True),
        sa.Column("down_time_s", sa.Float(), nullable=True),
        sa.Column("failed_time_s", sa.Float(), nullable=True),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["asked_for"], ["jobs.uid"], name=op.f("fk_nodes_asked_for_jobs")),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_nodes")),
    )
    op.create_index(op.f("ix_nodes_down_time_s"), "nodes", ["down_time_s"])
    op.create_index(op.f("ix_nodes_failed_time_s"), "nodes", ["failed_time_s"])
    op.add_column("jobs", sa.Column("candidate", sa.Integer(), nullable=False, server_default="0"))
    op.add_column("jobs", sa.Column("provisioning_time_s", sa.Float(), nullable=True))
    op.add_column("job_attempts", sa.Column("candidate", sa.Integer(), nullable=False, server_default="0"))


def downgrade() -> None:
    """Takes them away."""
    op.drop_column("job_attempts", "candidate")
    op.drop_column("jobs", "provisioning_time_s")
    op.drop_column("jobs", "candidate")
    op.drop_table("nodes")

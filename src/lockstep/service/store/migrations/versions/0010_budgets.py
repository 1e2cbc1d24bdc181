"""What projects spent on days that are over, and the alerts of their budgets."""

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Makes the tables, and lets starts be found by when they ended."""
    op.create_table(
        "spent_days",
        sa.Column("project", sa.String(length=128), nullable=False),
        sa.Column("day", sa.String(length=10), nullable=False),
        sa.Column("owed_usd", sa.String(length=32), nullable=False),
        sa.Column("simulated_usd", sa.String(length=32), nullable=False),
        sa.Column("unpriced", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("project", "day", name=op.f("pk_spent_days")),
    )
    op.create_table(
        "budget_alerts",
        sa.Column("seq", sa.Integer(), autoincrement=True, nullable=False),
        sa.Column("project", sa.String(length=128), nullable=False),
        sa.Column("period", sa.String(length=10), nullable=False),
        sa.Column("share", sa.String(length=16), nullable=False),
        sa.Column("limit_usd", sa.String(length=32), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.Column("time_s", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("seq", name=op.f("pk_budget_alerts")),
        sa.UniqueConstraint(
            "project", "period", "share", "limit_usd", name=op.f("uq_budget_alerts_project_period_share_limit_usd")
        ),
    )
    op.create_index(op.f("ix_job_attempts_end_time_s"), "job_attempts", ["end_time_s"])


def downgrade() -> None:
    """Takes them away."""
    op.drop_index(op.f("ix_job_attempts_end_time_s"), table_name="job_attempts")
    op.drop_table("budget_alerts")
    op.drop_table("spent_days")

"""The indexes that a project's lists of jobs are read by, all of them and those in a state."""

from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None

TIME = "ix_jobs_create_time_s"
QUEUE = "ix_jobs_state_priority_create_time_s_uid"
LIST = "ix_jobs_project_create_time_s_uid"
STATE_LIST = "ix_jobs_state_project_create_time_s_uid"


def upgrade() -> None:
    """Makes them, in place of those by time and by state alone."""
    op.create_index(op.f(LIST), "jobs", ["project", "create_time_s", "uid"])
    op.create_index(op.f(STATE_LIST), "jobs", ["state", "project", "create_time_s", "uid"])
    op.drop_index(op.f(TIME), table_name="jobs")
    op.drop_index(op.f(QUEUE), table_name="jobs")


def downgrade() -> None:
    """Puts the others back."""
    op.create_index(op.f(TIME), "jobs", ["create_time_s"])
    op.create_index(op.f(QUEUE), "jobs", ["state", "priority", "create_time_s", "uid"])
    op.drop_index(op.f(LIST), table_name="jobs")
    op.drop_index(op.f(STATE_LIST), table_name="jobs")

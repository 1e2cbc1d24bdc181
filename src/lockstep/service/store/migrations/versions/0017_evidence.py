"""When things happened that were recorded later, and how long nodes were seen."""

import sqlalchemy as sa
from alembic import op

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None

COLUMNS = (("job_attempts", "latest_end_time_s"), ("job_events", "happened_time_s"), ("nodes", "seen_time_s"))


def upgrade() -> None:
    """Adds the columns: of what there is, nothing more is known."""
    for table, name in COLUMNS:
        op.add_column(table, sa.Column(name, sa.Float()))


def downgrade() -> None:
    """Takes them away."""
    for table, name in COLUMNS:
        op.drop_column(table, name)

"""Which replicas went on alone on another machine."""

import sqlalchemy as sa
from alembic import op

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None

TABLES = ("jobs", "job_attempts")


def upgrade() -> None:
    """Adds the columns: of what there is, none has."""
    for name in TABLES:
        op.add_column(name, sa.Column("moves", sa.JSON(), nullable=False, server_default="[]"))


def downgrade() -> None:
    """Takes them away."""
    for name in TABLES:
        op.drop_column(name, "moves")

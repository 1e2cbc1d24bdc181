"""A number that changes with each change of a job, so that jobs that have not changed are not read again."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Makes the column."""
    op.add_column("jobs", sa.Column("revision", sa.Integer(), nullable=False, server_default="0"))

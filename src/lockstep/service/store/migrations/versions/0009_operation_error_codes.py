"""The code of an operation's error: whether what it was for failed, or was cancelled."""

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None

_FAILED_PRECONDITION = 9  # what every error was shown as before


def upgrade() -> None:
    """Adds it."""
    op.add_column("operations", sa.Column("error_code", sa.Integer(), nullable=True))
    operations = sa.table("operations", sa.column("error_code"), sa.column("error_message"))
    failed = operations.c.error_message.is_not(None)
    op.execute(operations.update().where(failed).values(error_code=_FAILED_PRECONDITION))


def downgrade() -> None:
    """Takes it away."""
    op.drop_column("operations", "error_code")

"""How far each webhook has been told of budgets' alerts."""

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Adds the column: nobody has been told of any."""
    op.add_column("webhook_cursors", sa.Column("alert_seq", sa.Integer(), nullable=False, server_default="0"))


def downgrade() -> None:
    """Takes it away."""
    op.drop_column("webhook_cursors", "alert_seq")

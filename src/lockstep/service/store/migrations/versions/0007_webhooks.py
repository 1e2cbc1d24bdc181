"""How far each webhook has been told."""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Makes the table."""
    op.create_table(
        "webhook_cursors",
        sa.Column("name", sa.String(length=64), nullable=False),
        sa.Column("seq", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_webhook_cursors")),
    )


def downgrade() -> None:
    """Takes it away."""
    op.drop_table("webhook_cursors")

"""What tells a database's jobs from another's on an engine that both use; made with the next lease."""

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Adds it."""
    op.add_column("leases", sa.Column("owner", sa.String(32), nullable=True))


def downgrade() -> None:
    """Takes it away."""
    op.drop_column("leases", "owner")

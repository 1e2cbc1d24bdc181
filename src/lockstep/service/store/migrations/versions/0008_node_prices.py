"""What nodes cost, and which nodes a start of a job had."""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Adds the columns: of what there was before, no price is known."""
    op.add_column("nodes", sa.Column("machine", sa.Text(), nullable=False, server_default=""))
    op.add_column("nodes", sa.Column("usd_per_hour", sa.String(length=32), nullable=True))
    op.add_column("nodes", sa.Column("price_source", sa.Text(), nullable=False, server_default=""))
    op.add_column("nodes", sa.Column("simulated", sa.Boolean(), nullable=False, server_default=sa.false()))
    op.add_column("job_attempts", sa.Column("machines", sa.JSON(), nullable=False, server_default="[]"))


def downgrade() -> None:
    """Takes them away."""
    op.drop_column("job_attempts", "machines")
    for name in ("simulated", "price_source", "usd_per_hour", "machine"):
        op.drop_column("nodes", name)

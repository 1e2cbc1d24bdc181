"""Secrets of jobs, encrypted."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Makes the table."""
    op.create_table(
        "secrets",
        sa.Column("project", sa.String(length=128), nullable=False),
        sa.Column("name", sa.String(length=64), nullable=False),
        sa.Column("sealed", sa.LargeBinary(), nullable=False),
        sa.Column("create_time_s", sa.Float(), nullable=False),
        sa.Column("update_time_s", sa.Float(), nullable=False),
        sa.Column("updated_by", sa.String(length=64), nullable=False),
        sa.PrimaryKeyConstraint("project", "name", name=op.f("pk_secrets")),
    )


def downgrade() -> None:
    """Takes it away."""
    op.drop_table("secrets")

"""API keys, and who submitted a job."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Makes the table and the column."""
    op.create_table(
        "api_keys",
        sa.Column("id", sa.String(length=32), nullable=False),
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("label", sa.String(length=64), nullable=False),
        sa.Column("scope", sa.String(length=16), nullable=False),
        sa.Column("project", sa.String(length=128), nullable=False),
        sa.Column("created_by", sa.String(length=64), nullable=False),
        sa.Column("create_time_s", sa.Float(), nullable=False),
        sa.Column("expire_time_s", sa.Float(), nullable=True),
        sa.Column("last_used_time_s", sa.Float(), nullable=True),
        sa.Column("revoke_time_s", sa.Float(), nullable=True),
        sa.Column("revoked_by", sa.String(length=64), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_api_keys")),
    )
    # Until now there was the home's token alone.
    op.add_column("jobs", sa.Column("submitted_by", sa.String(length=64), nullable=False, server_default="home"))


def downgrade() -> None:
    """Takes them away."""
    op.drop_column("jobs", "submitted_by")
    op.drop_table("api_keys")

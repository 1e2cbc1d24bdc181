"""How much each job keeps in the bucket, and since when."""

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Makes the table."""
    op.create_table(
        "stored_sizes",
        sa.Column("job_uid", sa.String(length=32), nullable=False),
        sa.Column("start_time_s", sa.Float(), nullable=False),
        sa.Column("end_time_s", sa.Float(), nullable=True),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("job_uid", "start_time_s", name=op.f("pk_stored_sizes")),
        sa.ForeignKeyConstraint(["job_uid"], ["jobs.uid"], name=op.f("fk_stored_sizes_job_uid_jobs")),
    )


def downgrade() -> None:
    """Takes it away."""
    op.drop_table("stored_sizes")

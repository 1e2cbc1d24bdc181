"""The packages whose classes a version's model is made of."""

import sqlalchemy as sa
from alembic import op

revision = "0018"
down_revision = "0017"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Adds the columns: what there is came without packages."""
    op.add_column("versions", sa.Column("package_uris", sa.JSON(), nullable=False, server_default="[]"))
    op.add_column("versions", sa.Column("python_module", sa.Text()))


def downgrade() -> None:
    """Takes them away."""
    op.drop_column("versions", "python_module")
    op.drop_column("versions", "package_uris")

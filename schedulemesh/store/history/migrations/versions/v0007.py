"""The labels of nodes that attempts ran with, and the alternative that was taken, are kept."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

_TABLE = "schedulemesh_history_attempts"


def upgrade() -> None:
    """Add the columns; of older attempts these are not known."""
    op.add_column(_TABLE, sa.Column("node_labels", sa.Text))
    op.add_column(_TABLE, sa.Column("alternative", sa.Integer))


def downgrade() -> None:
    """Remove them."""
    op.drop_column(_TABLE, "alternative")
    op.drop_column(_TABLE, "node_labels")

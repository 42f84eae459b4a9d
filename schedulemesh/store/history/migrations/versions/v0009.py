"""The flavor in which attempts ran is kept."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None

_TABLE = "schedulemesh_history_attempts"


def upgrade() -> None:
    """Add the column; of older attempts this is not known."""
    op.add_column(_TABLE, sa.Column("flavor", sa.Text))


def downgrade() -> None:
    """Remove it."""
    op.drop_column(_TABLE, "flavor")

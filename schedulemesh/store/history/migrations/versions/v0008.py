"""What the tasks of attempts start after is kept."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None

_TABLE = "schedulemesh_history_attempts"


def upgrade() -> None:
    """Add the column; of older attempts this is not known."""
    op.add_column(_TABLE, sa.Column("starts_after", sa.Text))


def downgrade() -> None:
    """Remove it."""
    op.drop_column(_TABLE, "starts_after")

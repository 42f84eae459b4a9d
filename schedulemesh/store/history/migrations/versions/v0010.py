"""How close together the members of attempts were to be placed is kept."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None

_TABLE = "schedulemesh_history_attempts"


def upgrade() -> None:
    """Add the column; of older attempts this is not known."""
    op.add_column(_TABLE, sa.Column("topology", sa.Text))


def downgrade() -> None:
    """Remove it."""
    op.drop_column(_TABLE, "topology")

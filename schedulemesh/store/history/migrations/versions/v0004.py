"""What was seen of external work and measured of agents is kept, which a rehearsal needs."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

_TABLE = "schedulemesh_history_steps"


def upgrade() -> None:
    """Add the column of facts."""
    op.add_column(_TABLE, sa.Column("fact", sa.Text))


def downgrade() -> None:
    """Remove it."""
    op.drop_column(_TABLE, "fact")

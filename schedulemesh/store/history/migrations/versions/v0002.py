"""Events contain the facts that a rehearsal needs."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column."""
    op.add_column("schedulemesh_history_events", sa.Column("fact", sa.Text))


def downgrade() -> None:
    """Remove the column."""
    op.drop_column("schedulemesh_history_events", "fact")

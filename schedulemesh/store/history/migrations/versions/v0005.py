"""The time limits of tasks are kept, which a simulation of an exported history needs."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

_TABLE = "schedulemesh_history_attempts"


def upgrade() -> None:
    """Add the columns; of older attempts the limits are not known."""
    op.add_column(_TABLE, sa.Column("max_run_s", sa.Float))
    op.add_column(_TABLE, sa.Column("on_time_limit", sa.String(12)))


def downgrade() -> None:
    """Remove them."""
    op.drop_column(_TABLE, "on_time_limit")
    op.drop_column(_TABLE, "max_run_s")

"""Ticks and loaded classes are kept, which a rehearsal needs."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

_TABLE = "schedulemesh_history_steps"


def upgrade() -> None:
    """Create the table."""
    op.create_table(
        _TABLE,
        sa.Column("journal", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("number", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("at", sa.Float, nullable=False),
        sa.Column("class_key", sa.Text),
        sqlite_with_rowid=False,
    )


def downgrade() -> None:
    """Remove the table."""
    op.drop_table(_TABLE)

"""The first tables of the history."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

_PREFIX = "schedulemesh_history"


def _number(name: str, *, key: bool = False) -> sa.Column[int]:
    return sa.Column(name, sa.BigInteger, primary_key=key, nullable=False, autoincrement=False)


def _texts(*names: str) -> list[sa.Column[str]]:
    return [sa.Column(name, sa.Text) for name in names]


def _times(*names: str) -> list[sa.Column[float]]:
    return [sa.Column(name, sa.Float) for name in names]


def upgrade() -> None:
    """Create all tables."""
    op.create_table(
        _PREFIX,
        _number("journal", key=True),
        *map(_number, ("upto", "next_attempt", "next_event")),
        sa.Column("at", sa.Float, nullable=False),
    )
    op.create_table(
        f"{_PREFIX}_attempts",
        _number("journal", key=True),
        _number("id", key=True),
        *_texts("task_id"),
        sa.Column("number", sa.Integer, nullable=False),
        *_texts("agent_name", "pool_name", "owner", "client"),
        sa.Column("priority", sa.Float),
        *_texts("labels"),
        *map(_number, ("cpu", "memory", "gpu")),
        *_texts("custom"),
        *_times(
            "submitted_at", "queued_at", "admitted_at", "started_at", "ended_at", "released_at"
        ),
        sa.Column("state", sa.String(12), nullable=False),
        sa.Column("reason", sa.String(48)),
        *_texts("error", "nodes"),
        sa.Column("rule", sa.String(48)),
        *_times("evicted_at"),
        *_texts("by_task", "by_agent", "by_pool", "by_owner", "by_client"),
        *_times("saved_at"),
        *_texts("save_error"),
        *_times("lost_s"),
        sa.Column("restored", sa.Boolean),
        sa.Column("charged", sa.Boolean, nullable=False),
        sa.Column("open", sa.Boolean, nullable=False),
        sqlite_with_rowid=False,
    )
    op.create_index(f"{_PREFIX}_by_task", f"{_PREFIX}_attempts", ["task_id"])
    op.create_index(
        f"{_PREFIX}_open",
        f"{_PREFIX}_attempts",
        ["id"],
        sqlite_where=sa.text("open = 1"),
        postgresql_where=sa.text("open"),
    )
    op.create_table(
        f"{_PREFIX}_events",
        _number("journal", key=True),
        _number("number", key=True),
        sa.Column("at", sa.Float, nullable=False),
        sa.Column("kind", sa.String(24), nullable=False),
        sa.Column("attempt", sa.BigInteger),
        *_texts("subject", "detail"),
        sqlite_with_rowid=False,
    )
    op.create_index(
        f"{_PREFIX}_of_attempt",
        f"{_PREFIX}_events",
        ["attempt"],
        sqlite_where=sa.text("attempt IS NOT NULL"),
        postgresql_where=sa.text("attempt IS NOT NULL"),
    )
    op.create_table(
        f"{_PREFIX}_usage",
        _number("journal", key=True),
        sa.Column("dimension", sa.SmallInteger, primary_key=True, autoincrement=False),
        sa.Column("hour", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("name", sa.Text, primary_key=True),
        *(
            sa.Column(name, sa.Float, nullable=False)
            for name in ("cpu_s", "gpu_s", "memory_mb_s", "waited_s", "lost_s", "lost_gpu_s")
        ),
        *map(_number, ("started", "completed", "failed", "cancelled", "lost", "preempted")),
        sqlite_with_rowid=False,
    )
    op.create_table(
        f"{_PREFIX}_nodes",
        _number("journal", key=True),
        _number("id", key=True),
        sa.Column("node_id", sa.Text, nullable=False),
        sa.Column("present", sa.Boolean, nullable=False),
        sqlite_with_rowid=False,
    )


def downgrade() -> None:
    """Remove all tables."""
    for name in ("_nodes", "_usage", "_events", "_attempts", ""):
        op.drop_table(f"{_PREFIX}{name}")

"""The facts of events have the form of the journal's format 5, in which a rehearsal reads them."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from schedulemesh.store.migrations import in_format_5

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

_EVENTS = sa.table(
    "schedulemesh_history_events",
    sa.column("journal", sa.BigInteger),
    sa.column("number", sa.BigInteger),
    sa.column("fact", sa.Text),
)
#: Rows that are read at a time.
_ROWS = 1000


def upgrade() -> None:
    """Rewrite the facts with agents that are told differently."""
    connection, columns, last = op.get_bind(), _EVENTS.c, (-1, -1)
    key = sa.tuple_(columns.journal, columns.number)
    facts = (
        sa.select(_EVENTS)
        .where(columns.fact.is_not(None))
        .order_by(columns.journal, columns.number)
    )
    while rows := connection.execute(facts.where(key > last).limit(_ROWS)).all():
        for journal, number, fact in rows:
            changed = in_format_5(fact.encode()).decode()
            if changed != fact:
                row = _EVENTS.update().where(columns.journal == journal, columns.number == number)
                connection.execute(row.values(fact=changed))
        last = rows[-1].journal, rows[-1].number


def downgrade() -> None:
    """Nothing: the older form is not written again."""

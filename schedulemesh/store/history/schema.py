"""The tables of the history. One database may hold the histories of many schedulers.

A new history is created as it is defined here; those of earlier versions are changed by Alembic
(``migrations``). Queries are built from these definitions.
Times are seconds since 1970, amounts are in units of 1/10,000. Text that is empty is stored as NULL.
"""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    ColumnElement,
    Float,
    Integer,
    MetaData,
    SmallInteger,
    String,
    Table,
    Text,
)

metadata = MetaData()

#: How far the history of a journal is.
progress = Table(
    "schedulemesh_history",
    metadata,
    Column("journal", BigInteger, primary_key=True, autoincrement=False),
    #: The number of the last commit of the journal whose facts are in the history.
    Column("upto", BigInteger, nullable=False),
    #: The numbers that the next attempt and the next event get.
    Column("next_attempt", BigInteger, nullable=False),
    Column("next_event", BigInteger, nullable=False),
    #: The time of the last fact that has one.
    Column("at", Float, nullable=False),
)

#: One row for each attempt to run a task, and for each agent that runs without a task.
attempts = Table(
    "schedulemesh_history_attempts",
    metadata,
    Column("journal", BigInteger, primary_key=True, autoincrement=False),
    Column("id", BigInteger, primary_key=True, autoincrement=False),
    #: NULL: an agent without a task.
    Column("task_id", Text),
    #: Which attempt of the task it is: 1 for the first.
    Column("number", Integer, nullable=False),
    Column("agent_name", Text),
    Column("pool_name", Text),
    Column("owner", Text),
    Column("client", Text),
    Column("priority", Float),
    #: A JSON object.
    Column("labels", Text),
    Column("cpu", BigInteger, nullable=False),
    Column("memory", BigInteger, nullable=False),
    Column("gpu", BigInteger, nullable=False),
    #: Custom resources: a JSON object.
    Column("custom", Text),
    Column("submitted_at", Float),
    Column("queued_at", Float),
    Column("admitted_at", Float),
    Column("started_at", Float),
    #: When the task ended, and when what it held was free; the latter only where it held something.
    Column("ended_at", Float),
    Column("released_at", Float),
    Column("state", String(12), nullable=False),
    Column("reason", String(48)),
    Column("error", Text),
    #: The ids of its nodes in ``nodes``: a JSON list.
    Column("nodes", Text),
    #: Its eviction: the rule, when it was decided, and for whom.
    Column("rule", String(48)),
    Column("evicted_at", Float),
    Column("by_task", Text),
    Column("by_agent", Text),
    Column("by_pool", Text),
    Column("by_owner", Text),
    Column("by_client", Text),
    Column("saved_at", Float),
    Column("save_error", Text),
    #: Seconds of work that its eviction lost.
    Column("lost_s", Float),
    #: Whether it began with a restored state; NULL: there was none.
    Column("restored", Boolean),
    #: The seconds that the task says each of its attempts may run, and what becomes of it then; NULL: it
    #: leaves that to its pool.
    Column("max_run_s", Float),
    Column("on_time_limit", String(12)),
    #: The labels of nodes that it ran with, or waits for: a JSON object. The number of the alternative that
    #: was taken, from 1; 0: none, or there is one alone.
    Column("node_labels", Text),
    Column("alternative", Integer),
    #: The flavor of its pool in which it ran; NULL: none.
    Column("flavor", Text),
    #: How close together its members were to be placed; NULL: anywhere.
    Column("topology", Text),
    #: The tasks that its task starts after, each as "ok:ID", "any:ID" or "fail:ID": a JSON list.
    Column("starts_after", Text),
    #: Whether its use of resources is counted: one attempt of each agent at a time.
    Column("charged", Boolean, nullable=False),
    #: Whether it may still change.
    Column("open", Boolean, nullable=False),
    sqlite_with_rowid=False,
)

#: One row for each event, in the order in which they happened.
events = Table(
    "schedulemesh_history_events",
    metadata,
    Column("journal", BigInteger, primary_key=True, autoincrement=False),
    Column("number", BigInteger, primary_key=True, autoincrement=False),
    Column("at", Float, nullable=False),
    Column("kind", String(24), nullable=False),
    #: The attempt that it belongs to; NULL: none.
    Column("attempt", BigInteger),
    #: The pool, node or group that it is about, where it belongs to no attempt.
    Column("subject", Text),
    #: A JSON object.
    Column("detail", Text),
    #: A JSON list with the fact itself, where a rehearsal needs all of it: submissions, definitions, nodes.
    Column("fact", Text),
    sqlite_with_rowid=False,
)

#: One row for each step that is no event and yet changes decisions: what a rehearsal has to repeat.
steps = Table(
    "schedulemesh_history_steps",
    metadata,
    Column("journal", BigInteger, primary_key=True, autoincrement=False),
    #: Its place among the events, whose numbers leave it out.
    Column("number", BigInteger, primary_key=True, autoincrement=False),
    Column("at", Float, nullable=False),
    #: The key of the class that was loaded.
    Column("class_key", Text),
    #: A JSON list with the fact: what was seen of external work, or measured. A tick has neither.
    Column("fact", Text),
    sqlite_with_rowid=False,
)

#: What was used in each hour, by pool, owner and label.
usage = Table(
    "schedulemesh_history_usage",
    metadata,
    Column("journal", BigInteger, primary_key=True, autoincrement=False),
    #: See ``usage.Dimension``.
    Column("dimension", SmallInteger, primary_key=True, autoincrement=False),
    #: Hours since 1970.
    Column("hour", Integer, primary_key=True, autoincrement=False),
    Column("name", Text, primary_key=True),
    Column("cpu_s", Float, nullable=False),
    Column("gpu_s", Float, nullable=False),
    Column("memory_mb_s", Float, nullable=False),
    Column("waited_s", Float, nullable=False),
    Column("lost_s", Float, nullable=False),
    Column("lost_gpu_s", Float, nullable=False),
    Column("started", BigInteger, nullable=False),
    Column("completed", BigInteger, nullable=False),
    Column("failed", BigInteger, nullable=False),
    Column("cancelled", BigInteger, nullable=False),
    Column("lost", BigInteger, nullable=False),
    Column("preempted", BigInteger, nullable=False),
    sqlite_with_rowid=False,
)

#: The nodes that were ever seen, by a short number.
nodes = Table(
    "schedulemesh_history_nodes",
    metadata,
    Column("journal", BigInteger, primary_key=True, autoincrement=False),
    Column("id", BigInteger, primary_key=True, autoincrement=False),
    Column("node_id", Text, nullable=False),
    #: Whether it is part of the cluster, as far as the history is.
    Column("present", Boolean, nullable=False),
    sqlite_with_rowid=False,
)


def indexes(dialect: str) -> tuple[str, ...]:
    """The statements that create the indexes. SQLAlchemy would load every dialect that an index has options
    for.
    """
    is_open = "open" if dialect == "postgresql" else "open = 1"
    has_attempt = "attempt IS NOT NULL"
    return (
        f"CREATE INDEX schedulemesh_history_by_task ON {attempts.name} (task_id)",
        f"CREATE INDEX schedulemesh_history_open ON {attempts.name} (id) WHERE {is_open}",
        f"CREATE INDEX schedulemesh_history_of_attempt ON {events.name} (attempt) WHERE {has_attempt}",
    )


def by_index(table: Table, journal: int) -> ColumnElement[bool]:
    """The rows of a journal, for a query that another column restricts to few.

    SQLite searches by the primary key where a query names its first column, and that finds all rows of the
    journal; a sum hides the column from it.
    """
    return table.c.journal + 0 == journal

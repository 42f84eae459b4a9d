"""Migrations: bring a stored journal to the present format, one format at a time."""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec
from sqlalchemy import Column, Connection, Table, select, update

from schedulemesh.domain.actor_names import ActorName, ActorNames
from schedulemesh.domain.agent import AgentSpec
from schedulemesh.engine.codec import decode_chunk, decode_facts
from schedulemesh.engine.messages.facts import FORMAT_VERSION
from schedulemesh.errors import JournalError
from schedulemesh.store.address import Address
from schedulemesh.store.schema import commits, journals, meta, snapshots

#: The fields of format 4 for what an agent is other than a single process.
_KINDS = {"gang", "job", "lease"}
_CHANGED = re.compile(rb'"(?:gang|job|lease)":\{|"fallback_labels":\[|"multi_level_las"')


def _no_change(_connection: Connection) -> None:
    """The next format has only new fields, whose defaults say what was true before."""


def _name_actors(connection: Connection) -> None:
    """Format 4 says of agents which actors run them, which format 3 left to be found out: of a gang those of
    its members, of another agent that of its process if its Ray options name one.
    """
    for journal in connection.execute(select(journals)).all():
        names = ActorNames(scheduler=journal.name, namespace=journal.namespace)
        _rewrite(connection, commits, commits.c.facts, journal.id, partial(_facts_named, names))
        _rewrite(connection, snapshots, snapshots.c.part, journal.id, partial(_chunk_named, names))


def _change_agents(connection: Connection) -> None:
    """Format 5 says in one field what an agent is, for which format 4 had three, of which one was used, and
    calls labels of nodes that will do instead alternatives.
    """
    for (journal,) in connection.execute(select(journals.c.id)).all():
        _rewrite(connection, commits, commits.c.facts, journal, in_format_5)
        _rewrite(connection, snapshots, snapshots.c.part, journal, _chunk_in_format_5)


def _rewrite(
    connection: Connection,
    table: Table,
    column: Column[bytes],
    journal: int,
    change: Callable[[bytes], bytes],
) -> None:
    """Change every record of a journal in one table; a damaged one is left for whoever reads it to refuse."""
    of_journal = table.c.journal == journal
    rows = connection.execute(select(table.c.number, table.c.crc, column).where(of_journal)).all()
    for number, crc, stored in rows:
        record = change(stored) if zlib.crc32(stored) == crc else stored
        if record != stored:
            values = {column.name: record, "crc": zlib.crc32(record)}
            is_row = table.c.number == number
            connection.execute(update(table).where(of_journal, is_row).values(**values))


def _facts_named(names: ActorNames, record: bytes) -> bytes:
    if b'"agent_admitted"' not in record:
        return record
    facts = msgspec.json.decode(record)
    for fact in facts:
        if fact["type"] == "agent_admitted":
            fact["actors"] = _actors_of(names, fact["agent"], fact["incarnation"])
    return msgspec.json.encode(facts)


def _chunk_named(names: ActorNames, stored: bytes) -> bytes:
    part = msgspec.json.decode(zlib.decompress(stored))
    if not part.get("agents"):
        return stored
    for agent in part["agents"]:
        agent["actors"] = _actors_of(names, agent["spec"], agent["incarnation"])
    return zlib.compress(msgspec.json.encode(part), 1)


def _actors_of(names: ActorNames, agent: dict[str, Any], incarnation: int) -> tuple[ActorName, ...]:
    agent = dict(agent)
    _change_in(agent)
    return names.of_agent(msgspec.convert(agent, AgentSpec), incarnation)


def in_format_5(record: bytes) -> bytes:
    """JSON that format 4 has encoded, as format 5 would."""
    if not _CHANGED.search(record):
        return record
    value = msgspec.json.decode(record)
    _change_in(value)
    return msgspec.json.encode(value)


def _chunk_in_format_5(stored: bytes) -> bytes:
    chunk = zlib.decompress(stored)
    changed = in_format_5(chunk)
    return stored if changed is chunk else zlib.compress(changed, 1)


def _change_in(value: object) -> None:
    """Change the agents and policies within a decoded value."""
    if isinstance(value, dict):
        # By these fields of an agent: a map with names as keys may have an entry "gang", too.
        if isinstance(value.get("pool_name"), str) and isinstance(value.get("resources"), dict):
            for kind in _KINDS & value.keys():
                if isinstance(value[kind], dict):
                    value["payload"] = {"type": kind, **value.pop(kind)}
            if labels := value.pop("fallback_labels", None):
                choices = [value.get("node_labels", []), *labels]
                value["alternatives"] = [{"node_labels": choice} for choice in choices]
        if value.get("order") == "multi_level_las":
            first_level, *_ = value.get("las_levels_gpu_hours", (1.0,))
            value |= {"order": "two_level_las", "las_threshold_gpu_hours": first_level}
        for inner in value.values():
            _change_in(inner)
    elif isinstance(value, list):
        for inner in value:
            _change_in(inner)


#: By format: changes the tables and records of a database from that format to the next one.
MIGRATIONS: dict[int, Callable[[Connection], None]] = {
    1: _no_change,
    2: _no_change,
    3: _name_actors,
    4: _change_agents,
}


def migrate(connection: Connection, address: Address, stored: int) -> None:
    """Bring a database of the format ``stored`` to the present one.

    Call in a transaction. Raises JournalError for a format that is newer or unknown, and where the records
    cannot be read afterwards; the transaction is to be rolled back then, which leaves the database as it was.
    """
    if not 1 <= stored <= FORMAT_VERSION:
        raise JournalError(
            f"the journal {address} has format {stored}, this ScheduleMesh reads formats 1 to "
            f"{FORMAT_VERSION}; it was left as it is: use the version that wrote it, or another state_path"
        )
    if stored == FORMAT_VERSION:
        return
    for version in range(stored, FORMAT_VERSION):
        MIGRATIONS[version](connection)
    _check_records(connection, address, stored)
    connection.execute(update(meta).where(meta.c.name == "format").values(value=FORMAT_VERSION))


def _check_records(connection: Connection, address: Address, stored: int) -> None:
    """Raise JournalError where a record cannot be read in the present format."""
    where = "commit", 0
    try:
        for number, facts in connection.execute(select(commits.c.number, commits.c.facts)):
            where = "commit", number
            decode_facts(facts)
        for number, chunk in connection.execute(select(snapshots.c.number, snapshots.c.part)):
            where = "snapshot chunk", number
            decode_chunk(chunk)
    except (msgspec.MsgspecError, zlib.error) as error:
        raise JournalError(
            f"the journal {address} has format {stored} and its {where[0]} {where[1]} cannot be brought to "
            f"format {FORMAT_VERSION} ({error}); it was left as it is"
        ) from error

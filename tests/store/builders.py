"""What journal tests share: small facts, and journals that say what they hold."""

from __future__ import annotations

import contextlib

from schedulemesh.domain.pool import PoolSpec
from schedulemesh.domain.resources import parse_resources
from schedulemesh.engine.codec import encode_chunk, encode_facts
from schedulemesh.engine.messages.facts import EpochBegun, PoolEnsured
from schedulemesh.engine.state.snapshot import parts, take_snapshot
from schedulemesh.errors import JournalError
from schedulemesh.protocol.agents import key_of
from schedulemesh.store.sql import SqlJournal


def ensured(name, cpu=1.0):
    """A pool is there."""
    return PoolEnsured(spec=PoolSpec(name=name, resources=parse_resources({"cpu": cpu})), at=0.0)


def fact(number):
    """A fact that says its number."""
    return EpochBegun(epoch=number, at=float(number))


def write(journal, *facts, **blobs):
    """Append one commit; each blob lies under its hash, whatever it is called here."""
    kept = {key_of(data): data for data in blobs.values()}
    journal.append(encode_facts(facts) if facts else b"", kept)


def facts(journal):
    """All facts after the snapshot."""
    return list(journal.load().facts())


def epochs(journal):
    """The numbers of all facts after the snapshot."""
    return [found.epoch for found in facts(journal)]


def pools(journal):
    """The names of the pools in the state that the journal leads to."""
    return list(journal.load().fold().ledger.accounts)


def written(state, size=1000):
    """A snapshot as the journal takes it."""
    return [encode_chunk(part) for part in parts(take_snapshot(state), size)]


class Unsure(SqlJournal):
    """Fails when told to: before the write, or after it, when it is durable and the answer is lost."""

    fails = None

    @contextlib.contextmanager
    def _transaction(self, what):
        fails = self.fails() if self.fails and what == "be written" else None
        if fails == "before":
            raise JournalError("the disk is full")
        with super()._transaction(what) as connection:
            yield connection
        if fails == "after":
            raise JournalError("the connection was lost")

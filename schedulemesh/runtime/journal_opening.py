"""Opening the journal: its address, and whether it may be a new one."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from schedulemesh.config.settings import SchedulerSettings
from schedulemesh.errors import JournalError
from schedulemesh.runtime.agents.registry import Agents
from schedulemesh.runtime.backend import Backend
from schedulemesh.store.address import Address, address_of
from schedulemesh.store.journal import Journal


class OpenJournal(Protocol):
    """Opens the journal at an address. Raises JournalError where it cannot, or is not there and must be."""

    def __call__(self, address: Address, *, must_exist: bool = False) -> Journal:
        """The journal, of which this process is not the writer yet."""


def journal_address(settings: SchedulerSettings, session_folder: Path) -> Address:
    """Where this scheduler's journal lies."""
    folder = session_folder / "schedulemesh"
    return address_of(settings.state_path, folder, settings.namespace, settings.name)


def mark_path(settings: SchedulerSettings, session_folder: Path) -> Path:
    """The file that names the strategy that is being called: on this node, wherever the journal is."""
    folder = session_folder / "schedulemesh"
    address = address_of(None, folder, settings.namespace, settings.name)
    return Path(f"{address.path}.asked")


def opened(
    open_journal: OpenJournal,
    settings: SchedulerSettings,
    backend: Backend,
    agents: Agents,
    living: set[tuple[str, str]],
    *,
    began: bool,
) -> Journal:
    """The journal. It must be there if this scheduler lived before (``began``, or agents of it live): a new
    one would know nothing of the agents that it left behind, and would end them.
    """
    unclaimed = [] if began else agents.unclaimed_actors(living, set())
    address = journal_address(settings, backend.session_folder())
    try:
        return open_journal(address, must_exist=began or bool(unclaimed))
    except JournalError as error:
        if not unclaimed:
            raise
        names = ", ".join(name for _, name in unclaimed[:10])
        raise JournalError(
            f"{error}; of {len(unclaimed)} actors that it left live {names}"
        ) from error


def cannot_begin(settings: SchedulerSettings, error: JournalError, *, new: bool) -> str:
    """The error of a supervisor that cannot recover; a new one is ended at once."""
    problem = f"scheduler {settings.name!r} cannot begin: {error}."
    if new:
        return f"{problem} Nothing was started; make it again once that is mended"
    return (
        f"{problem} Once that is mended it begins at the next call. To give it up, call shutdown() or run "
        f"`schedulemesh stop --name {settings.name} --namespace {settings.namespace}`: its agents end, "
        "its journal stays as it is"
    )

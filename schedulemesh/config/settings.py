"""Settings of one scheduler: name, journal, strategies and intervals."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import msgspec

from schedulemesh.config.alerts import AlertSettings
from schedulemesh.config.auth import AuthSettings
from schedulemesh.config.http import HttpSettings
from schedulemesh.config.traces import TraceSettings, parse_trace_settings
from schedulemesh.domain.kinds import is_a
from schedulemesh.domain.language import Language
from schedulemesh.domain.names import as_text
from schedulemesh.domain.numbers import (
    MAX_DURATION_S,
    parse_count,
    parse_flag,
    parse_positive,
)
from schedulemesh.errors import InvalidRequestError, shown

#: Version of the protocol between client and supervisor; incremented by each incompatible change.
PROTOCOL_VERSION = 5

DEFAULT_NAMESPACE = "schedulemesh"
#: The name of a new scheduler where none is given.
DEFAULT_NAME = "head"

#: How long results of submissions are remembered, so that a retried request is executed once.
ANSWER_MEMORY_S = 24 * 3600.0

#: Quota freed by ``preempt_task(for_pool=...)`` is held this long for that pool.
POOL_HOLD_S = 60.0
#: Seconds for which it is held for the client that freed it, where no pool was named.
CLIENT_HOLD_S = 10.0

#: Characters of a path or URL.
_MAX_PATH = 4096

#: The highest allowed limit of a journal, in facts or bytes.
_MOST_BYTES = 10**15

#: The highest allowed limit of one stored value in bytes. SQLite takes 10**9 bytes; PostgreSQL takes 2**30,
#: in an encoding that may double them.
MAX_STORED_BYTES = 500_000_000
#: The settings that limit one stored value.
_OF_ONE_VALUE = ("saved_state_bytes", "result_bytes")

#: Constructor arguments and payloads above this many bytes are refused.
MAX_BLOB_BYTES = 16 * 1024 * 1024


class JournalSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How much a journal keeps, and for how long. Raises ValueError for values that are not above 0."""

    #: Facts after which a snapshot replaces them. More: fewer snapshots, slower recovery (100,000 facts take
    #: a few seconds).
    snapshot_facts: int = 50_000
    #: Bytes of facts after which a snapshot replaces them; lower it if the disk is small.
    snapshot_bytes: int = 16 * 1024 * 1024
    #: Seconds after which a snapshot is taken if there is any new fact; bytes that are no longer referenced
    #: are deleted at the second snapshot after that.
    snapshot_s: float = 3600.0
    #: The maximum size of a saved state in bytes, at most 500,000,000, which every store takes; a larger
    #: state is refused. Store large states in a file or an object store, and save its address.
    saved_state_bytes: int = 256 * 1024 * 1024
    #: The maximum size of the result of a task that runs by itself, in bytes, at most 500,000,000; with a
    #: larger one the task has failed. Write it to a file or an object store, and return its address.
    result_bytes: int = 16 * 1024 * 1024
    #: Bytes of all results, and of all saved states of tasks that no longer run; above it the oldest are
    #: deleted.
    saved_states_bytes: int = 4 * 1024 * 1024 * 1024
    #: Seconds for which the result or the saved state of a task that no longer runs is kept (default 7 days).
    saved_state_s: float = 7 * 24 * 3600.0

    def __post_init__(self) -> None:
        """Convert to exact numbers and check the ranges."""
        force = msgspec.structs.force_setattr
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if name.endswith("_s"):
                force(self, name, parse_positive(value, name, MAX_DURATION_S))
            else:
                limit = MAX_STORED_BYTES if name in _OF_ONE_VALUE else _MOST_BYTES
                force(self, name, parse_count(value, name, 1, limit))


def parse_journal_settings(value: object) -> JournalSettings:
    """Parse the argument ``journal``; None: the defaults. Raises InvalidRequestError."""
    if value is None:
        return JournalSettings()
    if not is_a(value, JournalSettings):
        raise InvalidRequestError(f"journal must be JournalSettings(...), not {shown(value)}")
    return value


def parse_state_path(value: object) -> str | None:
    """Parse the location of a journal: a folder, relative to the caller's working directory, or a URL.

    Raises InvalidRequestError for anything else.
    """
    if value is None:
        return None
    path = as_text(value) if not isinstance(value, os.PathLike) else as_text(_fspath(value))
    if not path or len(path) > _MAX_PATH or not path.isprintable():
        raise InvalidRequestError(
            f"state_path must be a folder or the URL of a PostgreSQL database, not {shown(value)}"
        )
    return path if "://" in path else str(Path(path).expanduser().absolute())


def _fspath(path: os.PathLike[Any]) -> object:
    try:
        return os.fspath(path)
    except Exception:  # noqa: BLE001  # a path of the user's own class may raise anything
        return None


class HistorySettings(msgspec.Struct, frozen=True, kw_only=True):
    """How much a history keeps, and for how long. Raises ValueError for values that are not above 0."""

    #: False: no history is written, and what was written before is left as it is.
    enabled: bool = True
    #: Seconds for which a task that has ended, and an event, are kept (default 90 days).
    keep_s: float = 90 * 24 * 3600.0
    #: The maximum number of attempts to run a task that are kept; above it the oldest are removed. One takes
    #: about 500 bytes on disk.
    keep_tasks: int = 5_000_000
    #: Seconds for which the sums of what was used in each hour are kept (default 2 years).
    keep_usage_s: float = 730 * 24 * 3600.0
    #: Where attempts that have ended are sent as traces: an address, or TraceSettings; None: nowhere.
    traces: TraceSettings | None = None

    def __post_init__(self) -> None:
        """Convert to exact numbers and check the ranges."""
        force = msgspec.structs.force_setattr
        force(self, "enabled", parse_flag(self.enabled, "enabled"))
        force(self, "traces", parse_trace_settings(self.traces))
        force(self, "keep_tasks", parse_count(self.keep_tasks, "keep_tasks", 1, _MOST_BYTES))
        for name in ("keep_s", "keep_usage_s"):
            force(self, name, parse_positive(getattr(self, name), name, MAX_DURATION_S))


def parse_history_settings(value: object) -> HistorySettings:
    """Parse the argument ``history``; None: the defaults. Raises InvalidRequestError."""
    if value is None:
        return HistorySettings()
    if not is_a(value, HistorySettings):
        raise InvalidRequestError(f"history must be HistorySettings(...), not {shown(value)}")
    return value


#: A scheduling strategy that has not returned after this many seconds is disabled, and the supervisor, which
#: it blocks, is restarted.
STRATEGY_HANG_S = 5.0

#: The same for its import and construction.
STRATEGY_LOAD_S = 30.0


class StrategyRef(msgspec.Struct, frozen=True, kw_only=True):
    """A scheduling strategy supplied by the user."""

    name: str
    #: Its import path ``module:Class``; empty if ``code`` is given.
    path: str = ""
    #: The pickled instance.
    code: bytes | None = None
    #: Entries of ``sys.path`` of the job that supplied it, for importing its modules.
    sys_path: tuple[str, ...] = ()


class SchedulerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings that a supervisor is created with; they cannot be changed afterwards."""

    name: str
    namespace: str = DEFAULT_NAMESPACE
    #: Whether it outlives the job that created it.
    detached: bool = False
    #: A directory on the supervisor's node for the journal, or the URL of a PostgreSQL database
    #: (``postgresql+psycopg://…``); None: Ray's session folder.
    state_path: str | None = None
    journal: JournalSettings = JournalSettings()
    history: HistorySettings = HistorySettings()
    #: Selects among the nodes on which an agent fits: "bin_pack" (fullest), "spread" (emptiest), "best_fit"
    #: (smallest remainder), "dominant_share" (scarcest resource stays freest) or "fragmentation_aware".
    node_strategy: str = "bin_pack"
    #: Selects among the matching pools of a task that names none; the same values.
    pool_strategy: str = "dominant_share"
    #: Plugins that are called before the built-in strategies, in this order.
    strategies: tuple[StrategyRef, ...] = ()
    #: Seconds between periodic runs of ensure_agent_health; None: it runs only when called.
    health_interval_s: float | None = None
    #: Seconds between observations of the cluster and the running agents.
    monitor_interval_s: float = 1.0
    #: Where the HTTP API listens; None: there is none.
    http: HttpSettings | None = None
    alerts: AlertSettings = AlertSettings()
    auth: AuthSettings = AuthSettings()
    #: Of the scheduler's own log: that of the process which creates it.
    language: Language = "en"

    def public(self) -> SchedulerSettings:
        """The settings for clients: without secrets, and without the code and import paths of strategies."""
        bare = tuple(StrategyRef(name=ref.name, path=ref.path) for ref in self.strategies)
        auth = AuthSettings(required=self.auth.required)
        alerts = self.alerts.public()
        return msgspec.structs.replace(self, strategies=bare, auth=auth, alerts=alerts)

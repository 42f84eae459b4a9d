"""The keeper of the strategies: loads them, times them, and ends what never returns.

A hook runs on the supervisor's only thread, so nothing there can stop one that hangs. A watchdog thread
does: it writes down beside the journal that the strategy is disabled, and exits the process. Ray makes the
supervisor again, which folds its journal and goes on without that strategy.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from schedulemesh.config.settings import STRATEGY_HANG_S, STRATEGY_LOAD_S, StrategyRef
from schedulemesh.core.shipping import load_value, see_folders
from schedulemesh.errors import InvalidRequestError
from schedulemesh.plugins.discovery import SCHEDULING_GROUP, load_class
from schedulemesh.plugins.guard import Guarded
from schedulemesh.plugins.scheduling import SchedulingStrategyPlugin

logger = logging.getLogger(__name__)

#: Seconds between two looks of the watchdog.
_LOOK_S = 0.1


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """Why a strategy is disabled, and since when (seconds since 1970)."""

    reason: str
    at: float


class StrategyKeeper:
    """Holds the plugins of one supervisor. ``file`` is where those that are disabled are written down."""

    def __init__(self, refs: Sequence[StrategyRef], file: Path) -> None:
        self._refs = refs
        self._file = file
        self._disabled = _read(file)
        #: Those that have loaded and are not disabled, in their order.
        self.plugins: tuple[Guarded, ...] = ()
        #: The strategy that is being loaded, and since when; None: none.
        self._loading: tuple[str, float] | None = None

    def load(self) -> None:
        """Load every strategy that is not disabled; one that cannot be loaded is disabled in this life."""
        if not self._refs:
            return
        threading.Thread(target=self._watch, name="strategy watchdog", daemon=True).start()
        self.plugins = tuple(
            guarded
            for ref in self._refs
            if ref.name not in self._disabled and (guarded := self._load(ref)) is not None
        )

    def status(self) -> list[dict[str, Any]]:
        """Every strategy: its hooks, how often it was asked, and why it is disabled (empty: it is not)."""
        loaded = {guarded.name: guarded for guarded in self.plugins}
        return [self._shown(ref.name, loaded.get(ref.name)) for ref in self._refs]

    def forget(self) -> None:
        """Remove what was written down."""
        self._file.unlink(missing_ok=True)

    def _shown(self, name: str, guarded: Guarded | None) -> dict[str, Any]:
        record = self._disabled.get(name)
        return {
            "name": name,
            "hooks": [] if guarded is None else list(guarded.hooks),
            "calls": 0 if guarded is None else guarded.calls,
            "failures": 0 if guarded is None else guarded.failures,
            "slow_calls": 0 if guarded is None else guarded.slow,
            "disabled": "" if record is None else record.reason,
        }

    def _load(self, ref: StrategyRef) -> Guarded | None:
        self._loading = (ref.name, time.monotonic())
        try:
            plugin = _made(ref)
        except (Exception, SystemExit) as error:
            reason = f"it cannot be loaded: {type(error).__name__}: {error}"
            logger.exception("scheduling strategy %s is disabled: %s", ref.name, reason)
            self._disabled[ref.name] = Record(reason=reason, at=time.time())
            return None
        finally:
            self._loading = None
        return Guarded(ref.name, plugin, time.monotonic, self._was_disabled)

    def _was_disabled(self, guarded: Guarded) -> None:
        self._write_down(guarded.name, guarded.disabled)

    def _write_down(self, name: str, reason: str) -> None:
        """Make durable that a strategy is disabled; where the disk refuses, it is so in this life only."""
        self._disabled[name] = Record(reason=reason, at=time.time())
        try:
            _write(self._file, self._disabled)
        except OSError:
            logger.exception("%s cannot be written", self._file)

    def _watch(self) -> None:
        while True:
            time.sleep(_LOOK_S)
            hung = self._hung(time.monotonic())
            if hung is not None:
                name, reason = hung
                logger.critical(
                    "scheduling strategy %s: %s; disabled, and the supervisor begins again",
                    name,
                    reason,
                )
                self._write_down(name, reason)
                os._exit(1)

    def _hung(self, now: float) -> tuple[str, str] | None:
        """The strategy that has not returned in time, and what is said of it."""
        loading = self._loading
        if loading is not None and now - loading[1] > STRATEGY_LOAD_S:
            return loading[0], f"it did not load within {STRATEGY_LOAD_S:g} s"
        for guarded in self.plugins:
            under_way = guarded.under_way
            if under_way is not None and now - under_way[1] > STRATEGY_HANG_S:
                return guarded.name, f"{under_way[0]} did not return within {STRATEGY_HANG_S:g} s"
        return None


def _made(ref: StrategyRef) -> SchedulingStrategyPlugin:
    see_folders(ref.sys_path)
    made = load_value(ref.code) if ref.code is not None else _constructed(ref.path)
    if not isinstance(made, SchedulingStrategyPlugin):
        raise InvalidRequestError(f"{made!r} is no SchedulingStrategyPlugin")
    return made


def _constructed(path: str) -> object:
    make: Callable[[], object] = load_class(path, SCHEDULING_GROUP)
    return make()


def _read(file: Path) -> dict[str, Record]:
    """What was written down; a file that cannot be read says nothing, and that is logged."""
    try:
        return msgspec.json.decode(file.read_bytes(), type=dict[str, Record])
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except (OSError, msgspec.MsgspecError) as error:
        logger.warning("%s cannot be read, so no strategy is taken as disabled: %s", file, error)
        return {}


def _write(file: Path, records: dict[str, Record]) -> None:
    """All or nothing, and on disk before it returns."""
    file.parent.mkdir(parents=True, exist_ok=True)
    fresh = file.with_suffix(".new")
    with fresh.open("wb") as stream:
        stream.write(msgspec.json.encode(records))
        stream.flush()
        os.fsync(stream.fileno())
    fresh.replace(file)

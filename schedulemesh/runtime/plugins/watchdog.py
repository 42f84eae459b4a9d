"""The plugin watchdog: loads scheduling strategies, times their calls, and disables what never returns.

A hook runs on the supervisor's only thread, so nothing there can stop one that hangs. A watchdog thread
does: it notes in the journal that the strategy is disabled, and exits the process. Ray makes the supervisor
again, which folds its journal and goes on without that strategy. One that ends the process itself is known
to the next process by the mark that was set before it was called.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from schedulemesh.api.cluster import StrategyInfo
from schedulemesh.config.settings import STRATEGY_HANG_S, STRATEGY_LOAD_S, StrategyRef
from schedulemesh.errors import InvalidRequestError, JournalError
from schedulemesh.plugins.guard import Guarded
from schedulemesh.plugins.scheduling import SchedulingStrategyPlugin
from schedulemesh.runtime.plugins.call_mark import CallMark
from schedulemesh.store.journal import Journal

logger = logging.getLogger(__name__)

#: Seconds between two looks of the watchdog.
_LOOK_S = 0.1
#: Makes a plugin from its reference; it runs the plugin's code, and raises whatever that raises.
LoadStrategy = Callable[[StrategyRef], object]

#: The journal's note of those that are disabled.
_NOTE = "disabled strategies"


class DisabledStrategy(msgspec.Struct, frozen=True, kw_only=True):
    """Why a strategy is disabled, and since when (seconds since 1970)."""

    reason: str
    at: float


class PluginWatchdog:
    """Holds the plugins of one supervisor. Those that are disabled are noted in ``journal``; which one is
    being asked, in the file ``mark``.
    """

    def __init__(
        self, refs: Sequence[StrategyRef], journal: Journal, mark: Path, load: LoadStrategy
    ) -> None:
        self._refs = refs
        self._load_strategy = load
        #: Set only where there is anybody to be asked.
        self._mark = CallMark(mark) if refs else None
        #: Where it is noted who is disabled.
        self.journal = journal
        self._disabled = _noted(journal)
        #: Notes are written one after the other, so that the last is the fullest.
        self._noting = threading.Lock()
        #: Those that have loaded and are not disabled, in their order.
        self.plugins: tuple[Guarded, ...] = ()
        #: The strategy that is being loaded, and since when; None: none.
        self._loading: tuple[str, float] | None = None

    def load(self, *, again: bool = False) -> None:
        """Load every strategy that is not disabled; one that cannot be loaded is disabled in this process.

        ``again``: an earlier process ran, and the strategy that was being called at its end is disabled.
        """
        if self._mark is None:
            return
        if again:
            self._blame(self._mark)
        self._mark.end()
        threading.Thread(target=self._watch, name="strategy watchdog", daemon=True).start()
        self.plugins = tuple(
            guarded
            for ref in self._refs
            if ref.name not in self._disabled and (guarded := self._load(ref)) is not None
        )

    def close(self) -> None:
        """The scheduler ends, and what was noted beside its journal goes too."""
        if self._mark is not None:
            self._mark.remove()

    def _blame(self, mark: CallMark) -> None:
        """Disable the strategy that was being asked when the former process ended."""
        unfinished_call = mark.unfinished_call()
        if unfinished_call is None or unfinished_call[0] in self._disabled:
            return
        name, hook = unfinished_call
        reason = f"the supervisor's process ended while it was asked {hook}"
        logger.critical("scheduling strategy %s is disabled: %s", name, reason)
        self._disabled[name] = DisabledStrategy(reason=reason, at=time.time())
        self._keep()

    def status(self) -> list[StrategyInfo]:
        """Every strategy: its hooks, how often it was asked, and why it is disabled (empty: it is not)."""
        loaded = {guarded.name: guarded for guarded in self.plugins}
        return [self._shown(ref.name, loaded.get(ref.name)) for ref in self._refs]

    def _shown(self, name: str, guarded: Guarded | None) -> StrategyInfo:
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
        if self._mark is not None:
            self._mark.begin(ref.name, "to load")
        try:
            plugin = self._make_plugin(ref)
        except BaseException as error:  # logged  # whatever it raises, the supervisor begins
            reason = f"it cannot be loaded: {type(error).__name__}: {error}"
            logger.exception("scheduling strategy %s is disabled: %s", ref.name, reason)
            self._disabled[ref.name] = DisabledStrategy(reason=reason, at=time.time())
            return None
        finally:
            self._loading = None
            if self._mark is not None:
                self._mark.end()
        return Guarded(ref.name, plugin, time.monotonic, self._was_disabled, self._mark)

    def _make_plugin(self, ref: StrategyRef) -> SchedulingStrategyPlugin:
        made = self._load_strategy(ref)
        if not isinstance(made, SchedulingStrategyPlugin):
            raise InvalidRequestError(f"{made!r} is no SchedulingStrategyPlugin")
        return made

    def _was_disabled(self, guarded: Guarded) -> None:
        self._disabled[guarded.name] = DisabledStrategy(reason=guarded.disabled, at=time.time())
        # A hook runs in the middle of a step, which must not wait for a disk.
        threading.Thread(target=self._keep, name="strategy record", daemon=True).start()

    def _keep(self) -> None:
        """Store which strategies are disabled; where the journal fails, that holds in this process only."""
        with self._noting:
            try:
                self.journal.put_note(_NOTE, msgspec.json.encode(dict(self._disabled)))
            except JournalError:
                logger.exception(
                    "which strategies are disabled cannot be stored; the next process will load them again"
                )

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
                self._disabled[name] = DisabledStrategy(reason=reason, at=time.time())
                self._keep()
                os._exit(1)

    def _hung(self, now: float) -> tuple[str, str] | None:
        """The strategy that has not returned in time, and what is said of it."""
        loading = self._loading
        if loading is not None and now - loading[1] > STRATEGY_LOAD_S:
            return loading[0], f"it did not load within {STRATEGY_LOAD_S:g} s"
        for guarded in self.plugins:
            running_call = guarded.running_call
            if running_call is not None and now - running_call[1] > STRATEGY_HANG_S:
                return (
                    guarded.name,
                    f"{running_call[0]} did not return within {STRATEGY_HANG_S:g} s",
                )
        return None


def _noted(journal: Journal) -> dict[str, DisabledStrategy]:
    """Who was disabled before; a note that cannot be read says nothing, and that is logged."""
    try:
        data = journal.note(_NOTE)
        return {} if data is None else msgspec.json.decode(data, type=dict[str, DisabledStrategy])
    except (JournalError, msgspec.MsgspecError) as error:
        logger.warning(
            "no strategy is taken as disabled, because the note cannot be read: %s", error
        )
        return {}

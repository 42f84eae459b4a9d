"""How long the actions of the runtime take in a simulation."""

from __future__ import annotations

import msgspec

from schedulemesh.domain.numbers import MAX_COUNT, MAX_DURATION_S, parse_number, parse_positive


class Timing(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds that each action takes. Raises InvalidRequestError for values out of range."""

    #: From the order to start an agent until it runs.
    start_s: float = 0.0
    #: Saving the state of a task that is evicted; its GPUs are held meanwhile.
    save_s: float = 60.0
    #: Loading a saved state, beside ``start_s``.
    restore_s: float = 120.0
    #: The same by size: (GPUs, seconds) for jobs with at most so many GPUs, ascending. Larger jobs, and all
    #: where it is empty, take ``restore_s``.
    restore_by_gpus: tuple[tuple[float, float], ...] = ()
    #: From the end of a run, or of saving, until the agent's resources are free.
    end_s: float = 0.0
    #: The interval at which the supervisor observes the cluster: then evictions are sought for queued tasks,
    #: and starts are reserved.
    tick_s: float = 1.0

    def __post_init__(self) -> None:
        """Check the ranges."""
        force = msgspec.structs.force_setattr
        for name in ("start_s", "save_s", "restore_s", "end_s"):
            force(self, name, parse_number(getattr(self, name), name, 0.0, MAX_DURATION_S))
        sizes = tuple(_checked(entry) for entry in self.restore_by_gpus)
        force(self, "restore_by_gpus", tuple(sorted(sizes)))
        force(self, "tick_s", parse_positive(self.tick_s, "tick_s", MAX_DURATION_S))

    def restore_of(self, gpus: float) -> float:
        """Seconds that loading the state of a job with so many GPUs takes."""
        return next(
            (seconds for most, seconds in self.restore_by_gpus if gpus <= most), self.restore_s
        )


def _checked(entry: tuple[float, float]) -> tuple[float, float]:
    gpus, seconds = entry
    return (
        parse_positive(gpus, "restore_by_gpus", float(MAX_COUNT)),
        parse_number(seconds, "restore_by_gpus", 0.0, MAX_DURATION_S),
    )

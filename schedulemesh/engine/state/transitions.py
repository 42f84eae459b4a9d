"""What is raised when a change of phase breaks the table of allowed transitions."""

from __future__ import annotations


class ForbiddenTransitionError(RuntimeError):
    """A fact changes a phase in a way that the table does not allow: whoever emitted it broke a promise."""

    def __init__(self, who: str, old: str, new: str) -> None:
        super().__init__(f"{who} is {old} and cannot become {new}")

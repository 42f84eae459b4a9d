"""Priority classes: names for priorities, which are accepted wherever a number is.

Beside the classes that there always are, the policy of a scheduler may have own ones. A word is looked up
where it is given, so each interface says how it asks its scheduler for them (``OWN_CLASSES``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextvars import ContextVar
from typing import TypeVar

from schedulemesh.errors import InvalidRequestError, nearest, shown

#: The priority of each class, the highest first.
PRIORITY_CLASSES = {
    "critical": 10.0,
    "high": 5.0,
    "normal": 1.0,
    "low": 0.5,
    "background": 0.1,
}
_NAMES = {priority: name for name, priority in PRIORITY_CLASSES.items()}
#: The classes as help texts and messages list them.
CLASSES_TEXT = ", ".join(f"{name} ({value:g})" for name, value in PRIORITY_CLASSES.items())

#: Returns the own classes of the scheduler that a word is meant for; called only for a word that is none of
#: ``PRIORITY_CLASSES``.
OWN_CLASSES: ContextVar[Callable[[], Mapping[str, float]]] = ContextVar("own_classes", default=dict)

Result = TypeVar("Result")


class UnknownPriorityClassError(InvalidRequestError):
    """A word is no priority class."""


def with_own_classes(classes: Mapping[str, float], work: Callable[[], Result]) -> Result:
    """What some work returns for which words may be these own classes, too."""
    token = OWN_CLASSES.set(lambda: classes)
    try:
        return work()
    finally:
        OWN_CLASSES.reset(token)


def as_priority(value: object, what: str = "priority") -> object:
    """The number of a priority class; anything but a text as it is. Raises UnknownPriorityClassError for
    another text.
    """
    if type(value) is not str:
        return value
    if value in PRIORITY_CLASSES:
        return PRIORITY_CLASSES[value]
    own_classes = OWN_CLASSES.get()()
    if value in own_classes:
        return own_classes[value]
    own_text = "".join(f", {name} ({number:g})" for name, number in own_classes.items())
    raise UnknownPriorityClassError(
        f"{what} is {shown(value)}{nearest(value, (*PRIORITY_CLASSES, *own_classes))}; allowed are a number, "
        f"and the classes {CLASSES_TEXT}{own_text}"
    )


def class_of(priority: float, own_class: str = "") -> str | None:
    """The class that has exactly this priority; None: no class has. ``own_class``: one of the policy that has
    it, which comes before others.
    """
    return own_class or _NAMES.get(priority)


def own_class_of(priority: float, own_classes: Mapping[str, float]) -> str:
    """The own class that has exactly this priority; empty: none has."""
    return next((name for name, number in own_classes.items() if number == priority), "")

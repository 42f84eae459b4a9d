"""Priority classes: names for priorities, which are accepted wherever a number is."""

from __future__ import annotations

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


def as_priority(value: object, what: str = "priority") -> object:
    """The number of a priority class; anything but a text as it is. Raises InvalidRequestError for another
    text.
    """
    if type(value) is not str:
        return value
    if value not in PRIORITY_CLASSES:
        raise InvalidRequestError(
            f"{what} is {shown(value)}{nearest(value, PRIORITY_CLASSES)}; allowed are a number, and the "
            f"classes {CLASSES_TEXT}"
        )
    return PRIORITY_CLASSES[value]


def class_of(priority: float) -> str | None:
    """The class that has exactly this priority; None: no class has."""
    return _NAMES.get(priority)

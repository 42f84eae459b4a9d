"""All calls, from every module of the package, in the order of their names."""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

from schedulemesh import api
from schedulemesh.api.call import Call, declared_by
from schedulemesh.api.leases import ReleaseLease
from schedulemesh.api.states import SaveTaskState
from schedulemesh.api.tasks import CompleteTask, RegisterTask, SubmitMany, SubmitTask
from schedulemesh.errors import InvalidRequestError, nearest, shown

#: Every call.
CALLS: tuple[type[Call], ...] = tuple(
    call
    for module in iter_modules(api.__path__, f"{api.__name__}.")
    if module.name != __name__
    for call in declared_by(import_module(module.name))
)
#: Those that may change the state.
CHANGES = tuple(call for call in CALLS if call.changes_state)
#: Changes that are in the history, or happen with every task; recorded only if the caller may not make them.
_FREQUENT = (
    SubmitTask,
    SubmitMany,
    RegisterTask,
    CompleteTask,
    SaveTaskState,
    ReleaseLease,
)
#: Changes that are recorded whatever comes of them.
AUDITED = frozenset(CHANGES).difference(_FREQUENT)


def check_change(name: str) -> None:
    """Raise InvalidRequestError for what is no name of a call that may change the state."""
    names = [str(call.__struct_config__.tag) for call in CHANGES]
    if name not in names:
        raise InvalidRequestError(
            f"there is no change {shown(name)}{nearest(name, names)}; there are {', '.join(sorted(names))}"
        )

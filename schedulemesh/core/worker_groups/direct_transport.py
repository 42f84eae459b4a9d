"""How tensors pass from process to process: by the object store, shared memory, or a direct transport."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Literal, get_args

from ray.actor import ActorHandle
from ray.exceptions import RayError

from schedulemesh.core.backend.ray_capabilities import connect_directly
from schedulemesh.core.worker_groups.shards import Form
from schedulemesh.errors import InvalidRequestError

if TYPE_CHECKING:
    from schedulemesh.core.worker_groups.group import WorkerGroup

#: "object_store"; "shared_memory", where senders write into the memory of receivers on their node, and send
#: through the object store to others; or "gloo", Ray's direct transport of tensors on the CPU.
Transport = Literal["object_store", "shared_memory", "gloo"]
OBJECT_STORE: Transport = "object_store"
SHARED_MEMORY: Transport = "shared_memory"
#: Transports of Ray between processes, not through the object store.
DIRECT: frozenset[Transport] = frozenset({"gloo"})


def prepare(transport: Transport, groups: Sequence[WorkerGroup]) -> None:
    """Make sure that the workers of the groups can use a transport.

    Raises ``InvalidRequestError`` if they cannot, and says why.
    """
    if transport not in get_args(Transport):
        raise InvalidRequestError(
            f"there is no transport {transport!r}; allowed are {', '.join(get_args(Transport))}"
        )
    if transport not in DIRECT:
        return
    named: dict[str, tuple[str, ActorHandle]] = {}
    for group in groups:
        agents = zip(group.agents, group.handles, strict=True)
        named.update(zip(group.workers, agents, strict=True))
    try:
        connect_directly(dict(named.values()), transport)
    except (ImportError, RuntimeError, ValueError, RayError) as error:
        raise InvalidRequestError(
            f"transport={transport!r} cannot be used by groups {', '.join(each.name for each in groups)}: "
            f"{error}; leave transport out to use the object store"
        ) from error


def check_tensors(transport: Transport, forms: Iterable[Form], key: str) -> None:
    """Raise ``InvalidRequestError`` if a transport cannot send what is held under a key."""
    kinds = sorted({form.kind for form in forms if form.library != "torch"})
    if transport in DIRECT and kinds:
        raise InvalidRequestError(
            f"transport={transport!r} sends torch tensors; under {key!r} are {', '.join(kinds)} arrays. "
            f"Leave transport out to use the object store"
        )

"""Serves a library's calls of ``ray.util.placement_group`` from the placement groups of a lease.

Libraries create their placement groups themselves and offer no argument for given ones. While a capture is
active, the functions ``placement_group`` and ``remove_placement_group`` of Ray are replaced in every module
of this process that has imported them, and in Ray's own modules for those that import them later. Other
processes, such as the actors that a library starts, are not affected: a library that creates its groups in
an actor needs the capture there.
"""

from __future__ import annotations

import functools
import inspect
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import ModuleType, TracebackType
from typing import Any, Protocol

import ray
from ray.util import placement_group as ray_placement_group
from ray.util import placement_group_table
from ray.util import remove_placement_group as ray_remove_placement_group
from ray.util.placement_group import VALID_PLACEMENT_GROUP_STRATEGIES, PlacementGroup
from typing_extensions import Self

from schedulemesh.core.backend.ray_resources import labels_of
from schedulemesh.domain.node_labels import NodeLabels, parse_node_labels
from schedulemesh.errors import GroupNotLeasedError, InvalidRequestError, shown
from schedulemesh.integrations.group_matching import (
    LeasedNode,
    PlacedGroup,
    RequestedGroup,
    best_match,
    mismatch,
)

_SIGNATURE = inspect.signature(ray_placement_group)
#: Arguments of ``placement_group`` that do not prevent a lease from serving the call. The name and the
#: lifetime of a served group remain those of the lease, the target node is a hint.
_SUPPORTED = {
    "bundles",
    "strategy",
    "name",
    "lifetime",
    "_soft_target_node_id",
    "bundle_label_selector",
}


class HasPlacementGroups(Protocol):
    """A lease, or anything else with placement groups."""

    @property
    def placement_groups(self) -> Sequence[PlacementGroup]:
        """Ordinary placement groups of Ray, created and placed."""


def capture(
    lease: HasPlacementGroups | Sequence[PlacementGroup],
    *,
    strict: bool = False,
    larger: bool = False,
) -> Capture:
    """Serve calls of ``placement_group`` in this process from a lease.

    Use it in a ``with`` statement, or call ``start()`` and, if ever, ``stop()``. Every thread is affected.

    Args:
        lease: the lease, or a sequence of placement groups.
        strict: raise GroupNotLeasedError where no free group serves a call; otherwise Ray gets the call.
        larger: let a group with larger or further bundles serve a call, too; the rest stays unused.
    """
    return Capture(lease, strict=strict, larger=larger)


class Capture:
    """The placement groups of a lease and which of them are in use. See ``capture``."""

    def __init__(
        self,
        lease: HasPlacementGroups | Sequence[PlacementGroup],
        *,
        strict: bool = False,
        larger: bool = False,
    ) -> None:
        groups = lease if isinstance(lease, Sequence) else getattr(lease, "placement_groups", None)
        if groups is None or not all(isinstance(group, PlacementGroup) for group in groups):
            raise InvalidRequestError(
                f"capture was given {shown(lease)}; allowed is a lease, or a sequence of placement groups"
            )
        self._groups = list(groups)
        #: Whether the lease is being evicted, or was; its groups serve no call then.
        self._preempted: Callable[[], bool] = getattr(lease, "preempted", lambda: False)
        self._strict = strict
        self._larger = larger
        self._used: set[int] = set()
        self._lock = threading.Lock()

    @property
    def groups(self) -> list[PlacementGroup]:
        """All placement groups of the lease."""
        return list(self._groups)

    @property
    def free(self) -> list[PlacementGroup]:
        """The placement groups that serve no call at the moment."""
        with self._lock:
            return [group for _, group in self._free()]

    def start(self) -> Self:
        """Serve calls from now on. Of several active captures the latest one is asked first."""
        with _replacing:
            taken = {group for active in _active for group in active.groups}
            if taken & set(self._groups):
                raise InvalidRequestError(
                    "A placement group can be in one active capture only; stop the other one first."
                )
            _active.append(self)
            if len(_active) == 1:
                _replace_everywhere(_REPLACEMENTS)
        return self

    def stop(self) -> None:
        """Serve no more calls; groups in use remain in the lease. Without effect if it is not active."""
        with _replacing:
            if self not in _active:
                return
            _active.remove(self)
            if not _active:
                _replace_everywhere({ours: rays for rays, ours in _REPLACEMENTS.items()})

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        _type: type[BaseException] | None,
        _error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        self.stop()

    def serve(self, request: RequestedGroup) -> PlacementGroup | None:
        """A free group for the request, which is then in use; None: there is none."""
        with self._lock:
            nodes = _nodes() if request.depends_on_nodes else {}
            free = [(position, _as_placed(group, nodes)) for position, group in self._free()]
            position = best_match(request, free, larger=self._larger)
            if position is None:
                return None
            self._used.add(position)
            return self._groups[position]

    def check_served(self, request: RequestedGroup) -> None:
        """Raise GroupNotLeasedError for a request that no group serves if this capture is strict."""
        if self._strict:
            with self._lock:
                raise GroupNotLeasedError(self._refusal(request))

    def take_back(self, group: PlacementGroup) -> bool:
        """Whether the group is one of this lease, which is then free for the next call."""
        if group not in self._groups:
            return False
        with self._lock:
            self._used.discard(self._groups.index(group))
        return True

    def _free(self) -> Iterator[tuple[int, PlacementGroup]]:
        if not self._preempted():
            yield from ((p, group) for p, group in enumerate(self._groups) if p not in self._used)

    def _refusal(self, request: RequestedGroup) -> str:
        requested_bundles = [dict(bundle) for bundle in request.bundles]
        nodes = _nodes() if request.depends_on_nodes else {}
        reasons = [
            f"group {position}: {mismatch(request, _as_placed(group, nodes), larger=self._larger)}"
            for position, group in self._free()
        ]
        reasons += [f"group {position} is in use" for position in sorted(self._used)]
        if self._preempted():
            reasons = ["The lease is being evicted"]
        return (
            f"No placement group of the lease serves the request for the bundles {requested_bundles} "
            f"with the strategy {request.strategy!r}. {'; '.join(reasons) or 'The lease has no groups'}. "
            "Lease the groups that the library requests, or capture without strict=True to let Ray create "
            "what is missing."
        )


#: Active captures; the last one is asked first.
_active: list[Capture] = []
_replacing = threading.Lock()


@functools.wraps(ray_placement_group)
def _placement_group(*args: Any, **kwargs: Any) -> PlacementGroup:
    request = _requested(_SIGNATURE.bind(*args, **kwargs).arguments)
    captures = _active[::-1]
    # A strategy that Ray does not know is for Ray to refuse.
    if request.strategy in VALID_PLACEMENT_GROUP_STRATEGIES:
        for active in captures:
            if (group := active.serve(request)) is not None:
                return group
        for active in captures:
            active.check_served(request)
    return _OF_RAY["placement_group"](*args, **kwargs)


@functools.wraps(ray_remove_placement_group)
def _remove_placement_group(placement_group: PlacementGroup) -> None:
    if not any(active.take_back(placement_group) for active in _active[::-1]):
        _OF_RAY["remove_placement_group"](placement_group)


#: The functions of Ray, where ``_replace_everywhere`` does not replace them.
_OF_RAY: dict[str, Callable[..., Any]] = {
    "placement_group": ray_placement_group,
    "remove_placement_group": ray_remove_placement_group,
}
_REPLACEMENTS: dict[Callable[..., Any], Callable[..., Any]] = {
    ray_placement_group: _placement_group,
    ray_remove_placement_group: _remove_placement_group,
}


def _requested(arguments: dict[str, Any]) -> RequestedGroup:
    used_options = {name for name, value in arguments.items() if value}
    unsupported = used_options - _SUPPORTED
    name, selectors = "bundle_label_selector", list[NodeLabels]()
    try:
        selectors = [parse_node_labels(one, name) for one in arguments.get(name) or ()]
    except (InvalidRequestError, TypeError):  # for Ray to refuse
        unsupported.add(name)
    return RequestedGroup(
        bundles=arguments["bundles"],
        strategy=arguments.get("strategy") or "PACK",
        selectors=selectors,
        unsupported=sorted(unsupported),
    )


def _nodes() -> dict[str, LeasedNode]:
    """The nodes of the cluster by id."""
    return {
        node["NodeID"]: LeasedNode(
            resources=node["Resources"],
            labels=labels_of(node.get("Labels") or {}, node["Resources"]),
        )
        for node in ray.nodes()
        if node["Alive"]
    }


def _as_placed(group: PlacementGroup, nodes: Mapping[str, LeasedNode]) -> PlacedGroup:
    entry = placement_group_table(group)
    if not entry or entry["state"] == "REMOVED":
        return PlacedGroup(bundles=(), nodes=(), exists=False)
    order = sorted(entry["bundles"])
    return PlacedGroup(
        bundles=[entry["bundles"][index] for index in order],
        nodes=[entry["bundles_to_node_id"].get(index, "") for index in order],
        by_id=nodes,
    )


def _replace_everywhere(
    replacements: dict[Callable[..., Any], Callable[..., Any]],
) -> None:
    """Replace functions wherever a module holds them as an attribute. This package's own calls to Ray are
    left alone: it manages the groups of the lease.
    """
    for module_name, module in list(sys.modules.items()):
        if isinstance(module, ModuleType) and not module_name.startswith("schedulemesh"):
            for name, value in list(vars(module).items()):
                for old, new in replacements.items():
                    if value is old:
                        setattr(module, name, new)

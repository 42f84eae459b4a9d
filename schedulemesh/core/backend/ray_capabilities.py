"""What some supported versions of Ray have and others lack; probed by whether it is there, not by number."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Mapping
from typing import Any

import ray.exceptions
from ray.actor import ActorHandle

_COLLECTIVE = "ray.experimental.collective"
_TOKENS = "ray._private.authentication.authentication_token_setup"
_SERVICES = "ray._private.services"
_TORCH_IS_MISSING = (
    "direct transports send torch tensors, and torch is not installed for {}: install it there, for example "
    "with pip install torch"
)


class _NeverRaisedError(Exception):
    """Stands for an exception that this Ray does not know."""


def rejected_token_error() -> type[Exception]:
    """The exception of a cluster that does not accept this process's token; one that is never raised where
    Ray has no tokens.
    """
    error_type: type[Exception] = getattr(ray.exceptions, "AuthenticationError", _NeverRaisedError)
    return error_type


def use_token_if_available() -> None:
    """Have this process send Ray's token where one is stored on this machine. Older versions do it by
    themselves if the environment says so, or have no tokens.
    """
    enable = _optional(_TOKENS, "maybe_enable_token_auth_if_token_available")
    if enable is not None:
        enable(warn_if_disabled=False)


def request_autoscaler(bundles: list[dict[str, float]], labels: list[dict[str, str]]) -> None:
    """Ask the autoscaler for room for these bundles, each on a node with these labels. An older Ray cannot be
    asked for labels, and the first version of the autoscaler passes over them: the bundles that need some are
    left out, as nodes of any kind would be added for them.
    """
    from ray.autoscaler.sdk import request_resources

    if not any(labels):
        request_resources(bundles=bundles)
    elif _autoscaler_knows_labels(request_resources):
        request_resources(bundles=bundles, bundle_label_selectors=labels)
    else:
        pairs = zip(bundles, labels, strict=True)
        request_resources(bundles=[bundle for bundle, needed in pairs if not needed])


def _autoscaler_knows_labels(request_resources: Callable[..., None]) -> bool:
    """Whether the autoscaler of this cluster adds nodes by their labels."""
    is_second = _optional("ray.autoscaler.v2.utils", "is_autoscaler_v2")
    if "bundle_label_selectors" not in inspect.signature(request_resources).parameters:
        return False
    return is_second is not None and bool(is_second())


def connect_directly(actors: Mapping[str, ActorHandle], backend: str) -> None:
    """Have actors, by their names, exchange tensors directly, by a communicator of this collective backend,
    unless one has all of them already.

    Raises ImportError if torch is missing or this Ray has no direct transports, ValueError if an actor was
    created without them or has initialized torch.distributed itself, and what Ray raises if an actor is in
    another communicator.
    """
    handles = list(actors.values())
    if not all(getattr(actor, "_ray_enable_tensor_transport", False) for actor in handles):
        raise ValueError("not all agents have ray_options={'enable_tensor_transport': True}")
    # Ray's module imports torch, so this comes before the question what this Ray has.
    if not torch_is_installed():
        raise ImportError(_TORCH_IS_MISSING.format("this process"))
    find = _optional(_COLLECTIVE, "get_collective_groups")
    create = _optional(_COLLECTIVE, "create_collective_group")
    if find is None or create is None:
        raise ImportError(f"Ray {ray.__version__} has no direct tensor transports")
    if find(handles, backend=backend):
        return
    # One that is in a communicator has its process group from that, and Ray's own error says so.
    unconnected = {
        name: actor for name, actor in actors.items() if not find([actor], backend=backend)
    }
    _require_torch_without_process_group(unconnected)
    create(handles, backend=backend)


def _require_torch_without_process_group(actors: Mapping[str, ActorHandle]) -> None:
    """Raise ImportError or ValueError, naming the actors in which Ray cannot make a communicator."""
    calls = [actor.__ray_call__ for actor in actors.values()]
    installed = ray.get([call.remote(torch_is_installed) for call in calls])
    initialized = ray.get([call.remote(has_process_group) for call in calls])
    without_torch = [name for name, yes in zip(actors, installed, strict=True) if not yes]
    own_group = [name for name, yes in zip(actors, initialized, strict=True) if yes]
    if without_torch:
        raise ImportError(_TORCH_IS_MISSING.format(f"agents {', '.join(without_torch)}"))
    if own_group:
        raise ValueError(
            f"agents {', '.join(own_group)} have initialized torch.distributed themselves, and Ray makes its "
            f"communicator of the same default process group"
        )


def torch_is_installed(actor: object = None) -> bool:  # noqa: ARG001  # as Ray calls it
    """Whether this process can import torch; also called in an actor's process."""
    if "torch" in sys.modules:
        return sys.modules["torch"] is not None
    return importlib.util.find_spec("torch") is not None


def has_process_group(actor: object) -> bool:  # noqa: ARG001  # as Ray calls it
    """Called in an actor's process: whether it has a default process group of torch.distributed."""
    distributed = sys.modules.get("torch.distributed")
    return distributed is not None and distributed.is_available() and distributed.is_initialized()


def local_node_ids() -> set[str]:
    """The ids of the nodes of all Ray clusters that run on this machine."""
    find = _optional(_SERVICES, "find_node_ids")
    if find is not None:
        return set(find())
    # Older versions have the same search of the processes, without a name for this one.
    return set(_optional(_SERVICES, "_find_address_from_flag")("--node_id"))


def _optional(module: str, name: str) -> Any:
    """Something of a module; None: this Ray does not have it."""
    try:
        return getattr(importlib.import_module(module), name, None)
    except ImportError:
        return None

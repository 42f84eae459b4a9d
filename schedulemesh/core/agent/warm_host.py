"""Warm host: an agent host whose class is loaded in advance; the object is built when an agent starts.

It runs in a placement group's first bundle and takes none of its resources, so that another agent can use the
bundle meanwhile. It is used for one agent.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence

import msgspec
from ray import ObjectRef
from ray.actor import ActorHandle

from schedulemesh.core.agent.host import AgentHost, AsyncAgentHost, host_class
from schedulemesh.core.agent.process_marks import mark_this_process
from schedulemesh.core.agent.user_errors import error_text
from schedulemesh.core.transport.user_code import load_arguments, load_class, ship_arguments
from schedulemesh.domain.user_data import UserClass
from schedulemesh.protocol.agents import Accelerators, AgentInit, Handled, ShippedClass, pack


class WarmHost(AgentHost):
    """Base of every warm host for a class without async methods."""

    def __init__(
        self, shipped: bytes, accelerators: Accelerators, supervisor: ActorHandle, mark: int
    ) -> None:
        mark_this_process(mark)
        # Received in advance: unpickling the first handle takes a process milliseconds.
        self._sm_supervisor = supervisor
        # An actor without GPUs sees all of them; the class must not.
        os.environ.update(accelerators.env_vars)
        self._sm_gpu_ids = accelerators.ids
        self._sm_loaded: UserClass = None
        try:
            self._sm_loaded = load_class(msgspec.msgpack.decode(shipped, type=ShippedClass))
        except BaseException as error:  # noqa: BLE001  # user code raises anything
            self._sm_error = error_text(error)
        _warm_up()

    def schedulemesh_ready(self) -> bytes:
        """Whether the class is loaded, or why it cannot be: Handled, packed."""
        return pack(Handled(error=self._sm_error))

    def schedulemesh_build(
        self, init: bytes, refs: Sequence[ObjectRef], nested: Sequence[ObjectRef]
    ) -> bytes:
        """Build the object; from now on this is an ordinary agent host."""
        self._sm_begin(init, self._sm_supervisor)
        self._sm_build(refs, nested)
        return self._sm_report()

    def _sm_class(self) -> UserClass:
        return self._sm_loaded


class AsyncWarmHost(WarmHost, AsyncAgentHost):
    """Base of every warm host for a class with async methods. The object is built on the loop, where Ray
    runs the constructor of every actor with such methods.
    """

    async def schedulemesh_build(  # type: ignore[override]  # Ray awaits it
        self, init: bytes, refs: Sequence[ObjectRef], nested: Sequence[ObjectRef]
    ) -> bytes:
        """See WarmHost."""
        return super().schedulemesh_build(init, refs, nested)

    def _sm_begin(self, init: bytes, supervisor: ActorHandle) -> None:
        super()._sm_begin(init, supervisor)
        self._sm_channel.loop = asyncio.get_running_loop()


def _warm_up() -> None:
    """Run the steps of building an object once, because codecs are slower the first time."""
    init = AgentInit(
        scheduler="",
        namespace="",
        agent_name="",
        incarnation=0,
        labels={},
        shipped=b"",
        arguments=None,
        saved=None,
    )
    msgspec.msgpack.decode(pack(init), type=AgentInit)
    load_arguments(ship_arguments((), {}).data, (), ())


def warm_host_class(shipped: ShippedClass) -> type:
    """As ``host_class``, for a warm host."""
    return host_class(shipped, (WarmHost, AsyncWarmHost))

"""The call that sets the functions which save and restore the states of a pool's tasks."""

from __future__ import annotations

from collections.abc import Callable

from ray import cloudpickle

from schedulemesh.api.results import Result
from schedulemesh.api.states import RegisterStateHandlers
from schedulemesh.client.arguments import public_calls
from schedulemesh.client.asking import done, logged
from schedulemesh.client.pickling import Pickling
from schedulemesh.client.scheduler_object import SchedulerObject
from schedulemesh.core.transport.user_code import ship_function, ship_state
from schedulemesh.domain.names import parse_name
from schedulemesh.domain.task import TaskState
from schedulemesh.domain.user_data import UserValue
from schedulemesh.protocol.agents import key_of

#: Returns the state of a task that is about to be evicted.
Preserver = Callable[[TaskState], dict[str, UserValue]]
#: Takes the dict that a preserver returned.
Restorer = Callable[[dict[str, UserValue]], None]

#: Of clients over Ray, whose processes belong to the cluster.
CLOUDPICKLE = Pickling(
    load_result=cloudpickle.loads, load_state=cloudpickle.loads, dump_state=ship_state
)


@public_calls
class StateHandlerCalls(SchedulerObject):
    """A scheduler object that sets the functions which save and restore states."""

    def register_state_handlers(
        self,
        pool_name: str,
        preserver: Preserver | None = None,
        restorer: Restorer | None = None,
    ) -> Result:
        """Set the functions that save and restore the states of a pool's tasks; both are replaced.

        ``preserver`` takes a TaskState and returns a dict; ``restorer`` takes that dict. They run in worker
        processes of their own, for at most ``save_timeout`` seconds. Those of a pool that does not exist yet
        take effect when it is created; the result then has ``warnings``.
        """
        blobs: dict[str, bytes] = {}
        keys: list[str | None] = []
        for what, function in (("preserver", preserver), ("restorer", restorer)):
            data = None if function is None else ship_function(function, what)
            keys.append(None if data is None else key_of(data))
            if data is not None:
                blobs[key_of(data)] = data
        request = RegisterStateHandlers(
            pool_name=parse_name(pool_name, "the pool's name"),
            preserver_key=keys[0],
            restorer_key=keys[1],
            blobs=blobs,
        )
        return logged("register_state_handlers", done(self._connection, request))

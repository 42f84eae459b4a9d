"""The connection to a supervisor: find or create it, compare versions, and call it."""

from __future__ import annotations

import functools
import logging
import platform
import time
from collections.abc import Mapping, Sequence
from typing import Any, Literal, cast

import msgspec
import ray
from ray.actor import ActorHandle
from ray.exceptions import ActorDiedError, ActorUnschedulableError, RayActorError, RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from schedulemesh.client.asking import RawAnswer, References
from schedulemesh.client.socket_channel import SocketChannel
from schedulemesh.config.settings import DEFAULT_NAMESPACE, PROTOCOL_VERSION, SchedulerSettings
from schedulemesh.core.agent.process_marks import JOB_MARK
from schedulemesh.core.backend.registered_schedulers import actor_name, registered_schedulers
from schedulemesh.core.backend.supervisor_actor import Supervisor
from schedulemesh.core.client.contradictions import refuse_contradictions, without_password
from schedulemesh.core.client.credentials import FirstToken, credential_of, forget_token, token_of
from schedulemesh.core.client.deadline import (
    SilentSchedulerError,
    answer,
    ask_ray,
    require_sign_of_life,
)
from schedulemesh.core.client.origin import task_of
from schedulemesh.core.client.task_request import Caller
from schedulemesh.core.transport.handles import actor_id, unpacked_handle
from schedulemesh.errors import (
    InvalidRequestError,
    NotAllowedError,
    ProtocolMismatchError,
    SchedulerExistsError,
    SchedulerNotFoundError,
    SchedulerUnavailableError,
)
from schedulemesh.protocol.agents import pack
from schedulemesh.protocol.answers import Hello

logger = logging.getLogger(__name__)

#: Seconds that a supervisor may take to withdraw.
_WITHDRAW_S = 5.0
#: Seconds that the name of an actor which has ended may still be taken.
_NAME_S = 2.0


class Connection:
    """The connection of one scheduler object to its supervisor; threads may share it.

    ``owned``: whether it ends with the job of this process, so that the object may end it.
    """

    def __init__(
        self,
        handle: ActorHandle,
        settings: SchedulerSettings,
        hello: Hello,
        *,
        credential: bytes = b"",
        owned: bool = False,
    ) -> None:
        self._handle = handle
        #: What is sent with every call.
        self.credential = credential
        self.settings = settings
        self.hello = hello
        self.owned = owned
        #: The task that this process runs for.
        self._task_id = task_of(settings.name, settings.namespace)
        #: "left": this object has detached; "ended": it has shut the scheduler down.
        self.state: Literal["open", "left", "ended"] = "open"
        self._socket = SocketChannel(hello.socket, unpacked_handle)
        #: Keys of the classes whose bytes the supervisor has.
        self.shipped: set[str] = set()

    @property
    def name(self) -> str:
        """The scheduler's name."""
        return self.settings.name

    @property
    def handle(self) -> ActorHandle:
        """The supervisor's Ray handle. Raises InvalidRequestError once this object has detached."""
        if self.state == "left":
            raise InvalidRequestError(
                f"this object has detached from scheduler {self.settings.name!r}; attach again with "
                "RayScheduler.attach"
            )
        return self._handle

    @functools.cached_property
    def caller(self) -> Caller:
        """What submissions take from the calling job."""
        context = ray.get_runtime_context()
        return Caller(
            namespace=context.namespace,
            runtime_env=_without_mark(context.runtime_env),
            owner=self.hello.owner,
            task_id=self._task_id,
        )

    @property
    def standing(self) -> bool:
        """Whether the scheduler was to end with this job, but a detached one of that name was found."""
        return self.hello.detached and not self.settings.detached

    def call(self, method: str, *args: object, what: str | None = None) -> RawAnswer:
        """Call the supervisor and wait. Raises SchedulerUnavailableError where it is gone or silent.

        ``what``: the name of the request, which decides how long it may take; None: the method's name.
        """
        handle = self.handle
        require_ray()
        name = self.settings.name
        try:
            if method == "ask" and not any(cast("References", args[1])):
                answered = self._over_socket(cast("bytes", args[0]), what or method)
                if answered is not None:
                    return answered
            ref = getattr(handle, method).remote(*args, self.credential)
            return cast("RawAnswer", answer(handle, name, what or method, ref))
        except ActorUnschedulableError as error:
            raise SchedulerUnavailableError(_without_node(name)) from error
        except SchedulerUnavailableError as error:
            raise _without_traceback(error) from None
        except RayActorError as error:
            raise SchedulerUnavailableError(_gone(name, error)) from None

    def _over_socket(self, data: bytes, what: str) -> RawAnswer | None:
        """The answer to an encoded request over the supervisor's socket; None: it is to be asked over Ray."""
        began = time.monotonic()
        look = functools.partial(require_sign_of_life, self._handle, self.name, what, began)
        return self._socket.ask(data, self.credential, look)

    def leave(self) -> None:
        """Use the scheduler no more, and let it run."""
        if self.state == "open":
            self.state = "left"
            self._socket.close()

    def end(self) -> None:
        """Have the supervisor end everything, then end it. Nothing happens if this object did so before."""
        if self.state == "ended":
            return
        end(self.handle, self.settings, self.credential)
        self.state = "ended"
        self._socket.close()

    def described(self) -> str:
        """What ``repr`` shows of a scheduler object; nothing is asked of the supervisor."""
        shown = self._identity()
        state = {"open": "", "left": ", detached from it", "ended": ", shut down"}[self.state]
        return ", ".join(f"{name}={value!r}" for name, value in shown.items()) + state

    def description(self) -> dict[str, object]:
        """The same by name, with the state of the connection."""
        state = {"open": "connected", "left": "detached from it", "ended": "shut down"}[self.state]
        return {**self._identity(), "state": state}

    def _identity(self) -> dict[str, object]:
        path = self.hello.settings.state_path
        return {
            "name": self.settings.name,
            "namespace": self.settings.namespace,
            "detached": self.hello.detached,
            "state_path": None if path is None else without_password(path),
        }


def end(handle: ActorHandle, settings: SchedulerSettings, credential: bytes) -> bool:
    """Have a supervisor end everything, even one that cannot start, then end it; its name is free then.
    False: it had ended already. Raises NotAllowedError where the credential is not an operator's.
    """
    name = settings.name
    try:
        answer(handle, name, "shutdown", handle.shutdown.remote(credential))
    except RayActorError:
        return False
    except NotAllowedError as error:
        raise _not_allowed(error) from None
    except SchedulerUnavailableError as error:
        raise _without_traceback(error) from None
    except ActorUnschedulableError:
        # It can never run again, but its name is taken until it is killed.
        ray.kill(handle)
        raise SchedulerUnavailableError(_without_node(name)) from None
    ray.kill(handle)
    forget_token(settings, credential)
    _await_free_name(handle, settings)
    return True


def connect(
    settings: SchedulerSettings, token: object = None, node_id: str | None = None
) -> Connection:
    """The connection to the living supervisor of this name, or to a new one.

    A new one is pinned to ``node_id`` (None: this node), because its journal lies there. Raises
    SchedulerExistsError where a living one belongs to another job and is not detached, or was made with
    other settings, and NotAllowedError where it does not accept the token.
    """
    require_ray()
    living = living_schedulers()
    job_id = ray.get_runtime_context().get_job_id()
    new = FirstToken(settings, token_of(settings, token))
    new.write()
    handle = ask_ray(
        "start the supervisor", lambda: _registered_or_new(new.settings, job_id, node_id)
    )
    credential = credential_of(new.secret)
    hello = _first_greeting(handle, settings, credential, new)
    if not hello.detached and hello.job_id != job_id:
        raise SchedulerExistsError(
            f"scheduler {settings.name!r} in namespace {settings.namespace!r} is alive and tied to job "
            f"{hello.job_id}; choose another name, or make it detached to share it"
        )
    refuse_contradictions(settings, hello.settings)
    connection = Connection(
        handle, settings, hello, credential=credential, owned=not hello.detached
    )
    _warn_of_others(connection, settings, living)
    return connection


def _first_greeting(
    handle: ActorHandle, settings: SchedulerSettings, credential: bytes, new: FirstToken
) -> Hello:
    """What the supervisor says of itself when it is first called. One that was made now and cannot be used is
    ended again, and its token is forgotten that it does not accept.
    """
    try:
        return _greet(handle, settings, credential)
    except NotAllowedError:
        new.forget()
        raise
    except SilentSchedulerError:
        # It would not answer a request to withdraw either, and may have started when it is called again.
        raise
    except SchedulerUnavailableError:
        _withdraw(handle, settings)
        raise


def _warn_of_others(
    connection: Connection, settings: SchedulerSettings, living: Sequence[tuple[str, str]]
) -> None:
    """Log that a scheduler is one of several on the same nodes, or was there before and stays."""
    if living and (settings.namespace, settings.name) not in living:
        logger.warning(
            "scheduler %r is a second one on the same nodes, beside %s: neither knows what the other has "
            "promised, so both may promise the same resources; while there are several, each must be named",
            settings.name,
            shown_schedulers(living),
        )
    if connection.standing:
        logger.warning(
            "scheduler %r is a standing one, made with detached=True: this object is attached to it, and it "
            "outlives this job; detach() leaves it, shutdown(force=True) ends it for everybody",
            settings.name,
        )


def _registered_or_new(
    settings: SchedulerSettings, job_id: str, node_id: str | None
) -> ActorHandle:
    """The handle of the supervisor of this name, made now if there is none."""
    actor = ray.remote(Supervisor).options(
        name=actor_name(settings.name),
        namespace=settings.namespace,
        lifetime="detached",
        get_if_exists=True,
        num_cpus=0,
        max_concurrency=100_000,
        # If it is killed, Ray restarts it and repeats pending calls; requests carry ids, so that a repeated
        # one is recognised. Ray's memory monitor kills such actors first: see docs/reliability.md.
        max_restarts=-1,
        max_task_retries=-1,
        scheduling_strategy=NodeAffinitySchedulingStrategy(
            # A file lies on its node; a database is reached from any.
            node_id or ray.get_runtime_context().get_node_id(),
            soft="://" in (settings.state_path or ""),
        ),
    )
    return actor.remote(pack(settings), job_id)


def _withdraw(handle: ActorHandle, settings: SchedulerSettings) -> None:
    """End a new supervisor that cannot start; its name is free then."""
    try:
        # The answer can be here before Ray has ended the actor and freed the name.
        ends = ray.get(handle.withdraw.remote(), timeout=_WITHDRAW_S)
    except RayError:
        ends = True
    if ends:
        _await_free_name(handle, settings)


def _await_free_name(handle: ActorHandle, settings: SchedulerSettings) -> None:
    """Wait until the name of an actor that has ended is free, which takes a moment."""
    until = time.monotonic() + _NAME_S
    while time.monotonic() < until and _is_named(handle, settings):
        time.sleep(0.005)


def _is_named(handle: ActorHandle, settings: SchedulerSettings) -> bool:
    """Whether this actor still has the supervisor's name."""
    try:
        supervisor = ray.get_actor(actor_name(settings.name), namespace=settings.namespace)
    except ValueError:
        return False
    return actor_id(supervisor) == actor_id(handle)


def find(settings: SchedulerSettings, token: object = None) -> Connection:
    """The connection to a living supervisor. Raises SchedulerNotFoundError where there is none, and
    NotAllowedError where it does not accept the token.
    """
    handle = supervisor_handle(settings)
    credential = credential_of(token_of(settings, token))
    hello = _greet(handle, settings, credential)
    refuse_contradictions(settings, hello.settings)
    return Connection(handle, settings, hello, credential=credential)


def supervisor_handle(settings: SchedulerSettings) -> ActorHandle:
    """The handle of the actor that has the supervisor's name in Ray; whether it could start is not asked.
    Raises SchedulerNotFoundError where no actor has it.
    """
    require_ray()
    name = actor_name(settings.name)
    try:
        return ask_ray("find it", lambda: ray.get_actor(name, namespace=settings.namespace))
    except ValueError:
        start = f"RayScheduler({settings.name!r}, namespace={settings.namespace!r}, detached=True"
        if settings.state_path is not None:
            start += f", state_path={settings.state_path!r}"
        raise SchedulerNotFoundError(
            f"no scheduler {settings.name!r} lives in namespace {settings.namespace!r}; "
            f"start one with {start}), or on the head node with `schedulemesh start --name {settings.name} "
            f"--namespace {settings.namespace}`"
        ) from None


def living_schedulers(namespace: object = None) -> list[tuple[str, str]]:
    """See ``registered_schedulers``. Raises SchedulerUnavailableError where Ray does not answer."""
    return ask_ray("list the schedulers", lambda: registered_schedulers(namespace))


def shown_schedulers(schedulers: Sequence[tuple[str, str]]) -> str:
    """Schedulers by name, with their namespaces where that is not the default."""
    return " and ".join(
        repr(name) if namespace == DEFAULT_NAMESPACE else f"{name!r} (namespace {namespace!r})"
        for namespace, name in schedulers
    )


def require_ray() -> None:
    """Raise where this process is not connected to a Ray."""
    if not ray.is_initialized():
        raise InvalidRequestError(
            "Ray is not running in this process; call ray.init() first, or use SimpleScheduler, which does"
        )
    if ray.util.client.ray.is_connected():
        raise InvalidRequestError(
            "this process is connected through Ray Client (ray://), which is not supported; call "
            "ray.shutdown(), and ray.init() on a node of the cluster, or use the HTTP API of the scheduler"
        )


def _greet(handle: ActorHandle, settings: SchedulerSettings, credential: bytes = b"") -> Hello:
    name = settings.name
    try:
        ref = handle.hello.remote(credential)
        packed = cast("bytes", answer(handle, name, "hello", ref))
        hello = msgspec.msgpack.decode(packed, type=Hello)
    except ActorUnschedulableError as error:
        raise SchedulerUnavailableError(_without_node(name)) from error
    except NotAllowedError as error:
        raise _not_allowed(error) from None
    except SilentSchedulerError:
        raise
    except SchedulerUnavailableError as error:
        raise _without_traceback(error) from None
    except RayActorError as error:
        raise SchedulerUnavailableError(_gone(name, error)) from None
    except RayError as error:
        raise SchedulerUnavailableError(f"scheduler {name!r} could not begin: {error}") from error
    except (msgspec.MsgspecError, TypeError) as error:
        raise ProtocolMismatchError(
            f"scheduler {name!r} answers in a form that this process cannot read, so it is of another "
            f"version; install the same version of ScheduleMesh on both sides ({error})"
        ) from None
    _refuse_other_versions(name, hello)
    return hello


def _refuse_other_versions(name: str, hello: Hello) -> None:
    """Raise ProtocolMismatchError where the supervisor and this process would not understand each other."""
    ours, theirs = platform.python_version(), hello.python
    if ours.split(".")[:2] != theirs.split(".")[:2]:
        raise ProtocolMismatchError(
            f"scheduler {name!r} runs on Python {theirs} and this process on Python {ours}; classes travel "
            "between them, so run this process on the scheduler's minor version, or start the scheduler "
            "anew on this one"
        )
    if hello.protocol != PROTOCOL_VERSION:
        raise ProtocolMismatchError(
            f"scheduler {name!r} speaks protocol {hello.protocol} and this process protocol "
            f"{PROTOCOL_VERSION}; install the same version of ScheduleMesh on both sides"
        )


def _gone(name: str, error: RayActorError) -> str:
    """The message for a supervisor that Ray reports as dead or unreachable."""
    if isinstance(error, ActorDiedError):
        if error.actor_init_failed:
            why = str(error).strip().rpartition("\n")[2]
            return (
                f"the supervisor of scheduler {name!r} could not start: {why}. Every node of the cluster "
                "needs this version of ScheduleMesh"
            )
        return (
            f"scheduler {name!r} has ended: it was shut down, or the job that it was tied to is over. "
            f"Make a new one with RayScheduler({name!r})"
        )
    message = str(error).strip().partition("\n")[0]
    return f"scheduler {name!r} cannot be reached at the moment: {message}"


def _without_mark(runtime_env: Mapping[str, Any]) -> dict[str, Any]:
    """The runtime environment of a driver for the agents that it starts: without the mark of its job, which
    they may outlive.
    """
    agent_env = dict(runtime_env)
    if "env_vars" in agent_env:
        agent_env["env_vars"] = {k: v for k, v in agent_env["env_vars"].items() if k != JOB_MARK}
    return {name: value for name, value in agent_env.items() if name != "env_vars" or value}


def _without_traceback(error: SchedulerUnavailableError) -> SchedulerUnavailableError:
    """The error that the supervisor raised, without Ray's traceback."""
    return SchedulerUnavailableError(str(getattr(error, "cause", error)))


def _not_allowed(error: NotAllowedError) -> NotAllowedError:
    """The same without Ray's traceback."""
    return NotAllowedError(str(getattr(error, "cause", error)))


def _without_node(name: str) -> str:
    """The message for a supervisor whose node is gone: a journal in a file cannot move to another node."""
    return (
        f"scheduler {name!r} cannot serve: the node that its journal lies on is gone, and a journal in a "
        "file is served from its own node only. Its agents on other nodes live on without it; shutdown() "
        "gives its name up, and a new one goes on where its state_path leads to a copy of the file"
    )

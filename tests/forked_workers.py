"""Ray workers that are forked from a process which has imported Ray, in a tenth of the processor time.

A worker of Ray is a new Python that imports Ray, which is half of what the tests on Ray cost. After
``fork_workers()`` each node that this process starts runs this file in place of Ray's ``default_worker.py``.
The first process with an environment imports Ray, forks a worker, and becomes the template of all others with
this environment: each of them passes it its arguments and standard streams, has it fork a worker, and ends.

Nothing else differs: a forked worker runs Ray's own program, in a process group of its own, and has loaded
what Ray loads in every worker. A template of more than a few workers has also loaded what agents and
supervisors import, and hidden it: a worker has it in ``sys.modules`` as soon as it imports it.

Ray itself starts the workers of a runtime environment, because a template that lives on would count as a
process that the job with this environment has left. It also starts those that have no id, as older versions
of Ray start them.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import socket
import sys

TYPE_CHECKING = False  # importing typing takes time
if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType

#: Seconds after which a template ends that no worker has asked for another.
_IDLE_S = 30.0
#: Workers that a template forks before it loads what is hidden: most jobs have no more, and few of those are
#: agents or supervisors.
_FIRST_WORKERS = 2
#: What Ray loads when a worker reads or writes its first value.
_OF_VALUES = (
    "ray._common.pydantic_compat",
    "pydantic.v1.fields",
    "starlette.datastructures",
    "pyarrow.json",
)
#: What is loaded and hidden: what a module imports whose assertions pytest has rewritten; what the host of an
#: agent imports, what everyone imports who has the handle of a supervisor, and what the supervisor imports.
#: Who imports one module has its group and those before, except for the first, which no other needs to have
#: in sight.
_HIDDEN = (
    ("_pytest.assertion.rewrite",),
    ("schedulemesh.core.agent.host",),
    ("schedulemesh.core.backend.supervisor_actor",),
    (
        "schedulemesh.core.backend.ray_backend",
        "schedulemesh.core.transport.user_code",
        "schedulemesh.runtime.supervisor",
        "schedulemesh.store.sql",
    ),
)
#: From linux/prctl.h.
_PR_SET_PDEATHSIG = 1


def fork_workers(*, log_monitor: bool = False) -> None:
    """Nodes of Ray that this process starts from now on fork their workers.

    ``log_monitor``: whether they have one, which sends what workers print to drivers: few drivers of these
    tests show it, and it lists the log files of all workers that there have been up to ten times a second.
    """
    from ray._private import parameter

    if not isinstance(parameter.RayParams, functools.partial):
        parameter.RayParams = functools.partial(
            parameter.RayParams, worker_path=__file__, include_log_monitor=log_monitor
        )


def _option(name: str, arguments: list[str]) -> str:
    prefix = f"--{name}="
    return next((each.removeprefix(prefix) for each in arguments if each.startswith(prefix)), "")


def _socket_path(arguments: list[str]) -> str | None:
    """Where the template for these arguments and this environment listens; None: it is not to be forked."""
    from zlib import crc32

    if _option("runtime-env-hash", arguments) != "0" or not _option("worker-id", arguments):
        return None
    environment = json.dumps([os.getcwd(), sorted(os.environ.items())])  # noqa: PTH109 - takes time
    return f"{_option('raylet-name', arguments)}.{crc32(environment.encode()):08x}"


def _forked_by_template(path: str, arguments: list[str]) -> bool:
    """Have the template fork a worker with these arguments; False: there is no template, or none any more."""
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.connect(path)
        socket.send_fds(connection, [b"0"], [0, 1, 2])
        connection.sendall(json.dumps(arguments).encode())
        connection.shutdown(socket.SHUT_WR)
        return connection.recv(1) == b"1"
    except OSError:
        return False


def _listening(path: str) -> socket.socket:
    """The socket of a new template, which takes the place of an earlier one. Of two that begin at once, one
    has no clients and soon ends.
    """
    listener = socket.socket(socket.AF_UNIX)
    # A name of its own first: two that bind the same one at once would fail, and Ray waits for each worker.
    listener.bind(f"{path}.{os.getpid()}")
    listener.listen(128)
    listener.settimeout(_IDLE_S)
    os.replace(f"{path}.{os.getpid()}", path)  # noqa: PTH105 - takes time
    return listener


class _HiddenModules:
    """A finder of modules which are loaded, though no worker sees them before it imports one of them."""

    def __init__(self, groups: Sequence[Sequence[str]]) -> None:
        import importlib

        #: The hidden modules of each group, in the order in which they were loaded.
        self._groups: list[dict[str, ModuleType]] = []
        seen = set(sys.modules)
        for group in groups:
            for name in group:
                # The worker that needs what cannot be imported will say why.
                with contextlib.suppress(Exception):
                    importlib.import_module(name)
            loaded = [name for name in sys.modules if name not in seen]
            self._groups.append({name: sys.modules[name] for name in loaded if _may_hide(name)})
            seen.update(loaded)
        for modules in self._groups:
            for name in modules:
                del sys.modules[name]
        sys.meta_path.insert(0, self)  # type: ignore[arg-type]

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        """Show a hidden module and all that it may need; None: it is not hidden."""
        for position, group in enumerate(self._groups):
            if name in group:
                return self._shown(position, name)
        return None

    def _shown(self, last: int, name: str) -> ModuleSpec:
        from importlib.machinery import ModuleSpec

        module = self._groups[last][name]
        for group in self._groups[min(last, 1) : last + 1]:
            sys.modules.update(group)
            group.clear()
        del sys.modules[name]  # else the import would take its own specification, and load it again
        return ModuleSpec(name, _Loaded(module), is_package=hasattr(module, "__path__"))


def _may_hide(name: str) -> bool:
    """Whether no module that stays in sight needs this one."""
    return name.partition(".")[0] not in sys.stdlib_module_names


class _Loaded:
    """The loader of a module that is loaded."""

    def __init__(self, module: ModuleType) -> None:
        self._module = module
        self._spec = module.__spec__

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return self._module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._spec  # the import has replaced it


class _Worker:
    """Ray's program for workers, compiled, with all that it imports loaded."""

    def __init__(self) -> None:
        import importlib

        import ray._private.workers

        (folder,) = ray._private.workers.__path__
        self._file = f"{folder}/default_worker.py"
        with open(self._file, "rb") as source:  # noqa: PTH123 - takes time
            self._code = compile(source.read(), self._file, "exec")
        exec(self._code, {"__name__": "default_worker", "__file__": self._file})
        for name in _OF_VALUES:
            with contextlib.suppress(ImportError):
                importlib.import_module(name)

    def run(self, arguments: list[str]) -> None:
        """Be a worker with these arguments."""
        import types

        main = sys.modules["__main__"] = types.ModuleType("__main__")
        main.__file__ = self._file
        sys.argv = [self._file, *arguments]
        sys.path[0] = os.path.dirname(self._file)  # noqa: PTH120 - as Python does it
        exec(self._code, main.__dict__)


def _forks(listener: socket.socket, arguments: list[str]) -> list[str]:
    """Fork a worker with these arguments, then one for each connection; load what is hidden after the first
    few. Returns in the workers, with their arguments; the template itself ends when it is idle, or with its
    raylet.
    """
    import ctypes
    import gc
    import signal

    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # leave no zombies
    gc.collect()
    gc.freeze()
    streams: list[int] = []
    workers = 0
    while _fork():
        workers += 1
        for each in streams:
            os.close(each)
        if workers == _FIRST_WORKERS:
            _HiddenModules(_HIDDEN)
            gc.freeze()
        try:
            connection, _ = listener.accept()
        except TimeoutError:
            sys.exit()
        _, streams, _, _ = socket.recv_fds(connection, 1, 3)
        arguments = json.loads(b"".join(iter(functools.partial(connection.recv, 65536), b"")))
        connection.sendall(b"1")
        connection.close()
    os.setpgid(0, 0)  # Ray kills the whole group of a worker
    gc.unfreeze()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    listener.close()
    for target, each in enumerate(streams):
        os.dup2(each, target)
        os.close(each)
    return arguments


def _fork() -> int:
    """``os.fork`` without the warning that other threads run: those of NumPy and Arrow expect forks."""
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


def _main(arguments: list[str]) -> None:
    path = _socket_path(arguments)
    if path is None:
        _Worker().run(arguments)
        return
    if _forked_by_template(path, arguments):
        return
    listener, worker = _listening(path), _Worker()
    worker.run(_forks(listener, arguments))


if __name__ == "__main__":
    _main(sys.argv[1:])

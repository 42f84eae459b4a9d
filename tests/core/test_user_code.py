"""Classes, functions and arguments as bytes, and back in a process that has not seen them."""

from __future__ import annotations

import subprocess
import sys
import threading

import msgspec
import pytest
import ray

from schedulemesh.config.settings import MAX_BLOB_BYTES
from schedulemesh.core.agent.agent_actor import AgentActor
from schedulemesh.core.agent.host import AgentHost, AsyncAgentHost, host_class
from schedulemesh.core.transport.user_code import (
    job_folders,
    load_arguments,
    load_class,
    ship_arguments,
    ship_class,
    ship_function,
    ship_value,
)
from schedulemesh.errors import InvalidRequestError
from schedulemesh.protocol.agents import ShippedClass, ShippedFunction


def shipped(cls):
    return msgspec.msgpack.decode(ship_class(cls), type=ShippedClass)


def methods(cls):
    return {m.name: m for m in shipped(cls).methods}


class Mixed:
    def __init__(self, name, labels):
        self.name = name

    def sync(self, a, b=2, *args, c, d=4, **kwargs):
        return a, b, args, c, d, kwargs

    def generator(self):
        yield 1

    async def coroutine(self):
        return 1

    async def async_generator(self):
        yield 1

    @staticmethod
    def static(a):
        return a

    @classmethod
    def of_class(cls, a):
        return a

    @property
    def shown(self):
        raise AssertionError("a property is not looked at")

    @ray.method(num_returns=3)
    def three(self):
        return 1, 2, 3

    def __call__(self):
        return 1

    def __len__(self):
        return 0


def test_methods_and_their_kinds():
    kinds = {name: m.kind for name, m in methods(Mixed).items()}
    assert kinds["sync"] == kinds["static"] == kinds["of_class"] == kinds["three"] == "sync"
    assert kinds["generator"] == "generator"
    assert kinds["coroutine"] == "async"
    assert kinds["async_generator"] == "async_generator"
    assert "__call__" in kinds
    assert not {"__init__", "__len__", "shown"} & set(kinds)


def test_parameters_are_those_that_a_caller_gives():
    names = {m: [p.name for p in found.parameters] for m, found in methods(Mixed).items()}
    assert names["sync"] == ["a", "b", "args", "c", "d", "kwargs"]
    assert names["static"] == names["of_class"] == ["a"]
    assert [p.has_default for p in methods(Mixed)["sync"].parameters][:2] == [False, True]


def test_what_ray_method_left_travels():
    assert methods(Mixed)["three"].ray_attributes == {"__ray_num_returns__": 3}


def test_a_host_class_is_made_without_the_users_class():
    host = host_class(shipped(Mixed))
    assert (host.__name__, issubclass(host, AsyncAgentHost)) == ("Mixed", True)
    assert issubclass(host_class(shipped(AgentActor)), AgentHost)
    assert not issubclass(host_class(shipped(AgentActor)), AsyncAgentHost)
    assert host.three.__ray_num_returns__ == 3


def test_an_installed_class_travels_by_name_and_an_own_one_by_value():
    assert b"test_user_code" not in shipped(AgentActor).code
    assert len(shipped(AgentActor).code) < 200
    assert b"async_generator" in shipped(Mixed).code, "its code goes along"


def test_an_own_class_loads_where_its_module_is_unknown(tmp_path):
    data = tmp_path / "class.bin"
    data.write_bytes(ship_class(Mixed))
    program = (
        "import sys, msgspec\n"
        "from schedulemesh.core.transport.user_code import load_class\n"
        "from schedulemesh.protocol.agents import ShippedClass\n"
        f"shipped = msgspec.msgpack.decode(open({str(data)!r}, 'rb').read(), type=ShippedClass)\n"
        "cls = load_class(msgspec.structs.replace(shipped, sys_path=()))\n"
        "print(cls('n', {}).sync(1, c=3), 'tests.core.test_user_code' in sys.modules)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "(1, 2, (), 3, 4, {}) False"


def test_the_jobs_folders_are_searched_last(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    assert str(tmp_path) in job_folders()
    data = msgspec.structs.replace(shipped(AgentActor), sys_path=(str(tmp_path), "/no/such"))
    assert load_class(data) is AgentActor
    assert sys.path[-1] == str(tmp_path)
    assert "/no/such" not in sys.path


def test_functions_travel():
    offset = 3
    data = msgspec.msgpack.decode(ship_function(lambda x: x + offset, "f"), type=ShippedFunction)
    assert load_class(data)(4) == 7
    with pytest.raises(InvalidRequestError, match="preserver must be a function, not 3"):
        ship_function(3, "preserver")


def test_what_cannot_be_pickled_is_named():
    class Locked:
        lock = threading.Lock()

    with pytest.raises(InvalidRequestError, match=r"the class Locked cannot be pickled.*lock"):
        ship_class(Locked)
    with pytest.raises(InvalidRequestError, match="actor_args and actor_kwargs cannot be pickled"):
        ship_arguments([threading.Lock()], {})
    with pytest.raises(InvalidRequestError, match="the payload cannot be pickled"):
        ship_value(threading.Lock(), "the payload")


def test_arguments_come_back():
    given = ship_arguments([1, [2]], {"a": {"b": (3,)}})
    assert (given.refs, given.nested) == ((), ())
    assert load_arguments(given.data, [], []) == ((1, [2]), {"a": {"b": (3,)}})


def test_references_are_taken_out(monkeypatch):
    whole, nested = ray.ObjectRef.from_random(), ray.ObjectRef.from_random()
    given = ship_arguments([whole, {"in": [nested]}], {"k": whole})
    assert given.refs == (whole, whole)
    assert given.nested == (nested,)
    args, kwargs = load_arguments(given.data, ["A", "B"], [nested])
    assert args == ("A", {"in": [nested]})
    assert kwargs == {"k": "B"}


def test_big_arguments_are_refused_by_name():
    with pytest.raises(InvalidRequestError, match=r"actor_kwargs take 16\.0 MB.*ray\.put"):
        ship_arguments([], {"x": bytes(MAX_BLOB_BYTES)})
    assert ship_value(bytes(MAX_BLOB_BYTES - 1000), "the payload")


def test_threads_may_ship_at_once():
    """Pickling by value is a switch of the whole process; threads must not turn it off for each other."""
    sizes = []

    def ship():
        sizes.extend(len(shipped(Mixed).code) for _ in range(20))

    threads = [threading.Thread(target=ship) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(sizes) == 80
    assert min(sizes) > 500

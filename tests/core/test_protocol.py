"""What travels and is stored: it comes back as it went, and a key says what it is the key of."""

from __future__ import annotations

import hashlib

import msgspec
import pytest
from ray import cloudpickle

from schedulemesh.client.states import given_state
from schedulemesh.core.transport.user_code import ship_state
from schedulemesh.domain.saved_state import SavedState, public_state
from schedulemesh.domain.task import TaskSpec
from schedulemesh.protocol.agents import (
    AgentInit,
    Command,
    CommandResult,
    MessageError,
    Method,
    Parameter,
    ShippedClass,
    StartReport,
    key_of,
    pack,
    unpack,
)

SAVED = SavedState(
    task=TaskSpec(task_id="t", pool_name="p", labels={"tier": "gold"}),
    agent_name="a",
    source="save_state",
    saved_at=12.5,
    last_metrics={"step": 3, "progress": 0.5},
    state=cloudpickle.dumps({"step": 3}),
    payload=cloudpickle.dumps([1, 2]),
)


@pytest.mark.parametrize(
    "value",
    [
        SAVED,
        Command(command_id=1, kind="save", epoch=3, seconds=2.0),
        CommandResult(error="no", data=b"\x00\xff", consistent=False, success=False),
        StartReport(
            node_id="n", pid=7, gpu_ids=("0", "1"), capabilities=("cancel",), state_restored=True
        ),
        AgentInit(
            scheduler="s",
            namespace="n",
            agent_name="a",
            mark=1 << 62,
            incarnation=2,
            labels={"a": "b"},
            shipped=b"x",
            arguments=None,
            saved=b"",
        ),
        ShippedClass(
            name="C",
            methods=(Method(name="m", kind="async", parameters=(Parameter(name="x", kind=1),)),),
            code=b"code",
            sys_path=("/job",),
        ),
    ],
    ids=lambda v: type(v).__name__,
)
def test_what_is_packed_comes_back(value):
    assert msgspec.msgpack.decode(pack(value), type=type(value)) == value


def test_a_key_is_the_hash_of_the_bytes():
    assert key_of(b"abc") == hashlib.sha256(b"abc").hexdigest()


def test_a_class_with_any_async_method_runs_on_a_loop():
    def kinds(*given):
        methods = tuple(Method(name=kind, kind=kind) for kind in given)
        return ShippedClass(name="C", methods=methods, code=b"").is_async

    assert kinds("sync", "async")
    assert kinds("async_generator")
    assert not kinds("sync", "generator")
    assert not kinds()


def test_a_saved_state_as_callers_see_it():
    shown = public_state(SAVED, cloudpickle.loads)
    assert shown == {
        "task_id": "t",
        "agent_name": "a",
        "pool_name": "p",
        "priority": 5.0,
        "priority_class": "high",
        "labels": {"tier": "gold"},
        "estimated_duration": None,
        "owner": "",
        "on_preempted": "",
        "max_preemptions": None,
        "max_run_s": None,
        "idle_s": None,
        "after": [],
        "array": "",
        "array_id": "",
        "array_index": None,
        "topology": "",
        "parent": "",
        "source": "save_state",
        "saved_at": 12.5,
        "consistent": True,
        "last_metrics": {"step": 3, "progress": 0.5},
        "progress": 0.5,
        "payload": [1, 2],
        "state": {"step": 3},
    }
    warned = msgspec.structs.replace(SAVED, warning="late")
    assert public_state(warned, cloudpickle.loads)["warning"] == "late"


def test_a_preservers_dict_is_shown_alone():
    kept = {"checkpoint_path": "/ckpt"}
    saved = msgspec.structs.replace(SAVED, source="preserver", state=cloudpickle.dumps(kept))
    assert public_state(saved, cloudpickle.loads) == {
        "task_id": "t",
        "checkpoint_path": "/ckpt",
    }
    assert cloudpickle.loads(saved.state) == kept


def test_a_state_passed_by_a_caller_round_trips():
    given = {"task_id": "t", "checkpoint_path": "/ckpt"}
    saved = given_state(given, now=1.0, dump=ship_state)
    assert (saved.source, saved.saved_at) == ("given", 1.0)
    assert public_state(saved, cloudpickle.loads) == given
    saved = given_state(public_state(SAVED, cloudpickle.loads), now=1.0, dump=ship_state)
    assert cloudpickle.loads(saved.state) == {"step": 3}
    assert (saved.task.pool_name, saved.task.priority, saved.agent_name) == ("p", 5.0, "a")


def test_what_is_known_of_a_task_without_a_state_is_none_when_it_is_given_back():
    bare = msgspec.structs.replace(SAVED, source="payload", state=None)
    shown = public_state(bare, cloudpickle.loads)
    again = given_state(shown, now=1.0, dump=ship_state)
    assert not again.restorable
    assert public_state(again, cloudpickle.loads) == shown, "a restorer gets it"
    assert given_state({**shown, "checkpoint": "/x"}, now=1.0, dump=ship_state).restorable


@pytest.mark.parametrize(
    "given", [None, "text", bytearray(b"x"), b"", b"\xc1", pack(SAVED), b"\x91" * 5000]
)
def test_what_is_no_report_is_not_taken_for_one(given):
    with pytest.raises(MessageError, match="Report"):
        unpack(given, StartReport)

"""Limits of requests in number and in bytes, which hold where the bytes arrive."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from schedulemesh.api.call import MAX_BLOBS
from schedulemesh.api.calls import CALLS
from schedulemesh.api.cluster import EndOrphans
from schedulemesh.api.history import EVENT_KINDS, QueryEvents
from schedulemesh.api.metrics import GetReportedMetrics
from schedulemesh.api.policies import ChangePolicy
from schedulemesh.api.preemption import EvaluatePreemption, ListPreemptions
from schedulemesh.api.states import RestoreTask
from schedulemesh.api.tasks import (
    MAX_SUBMISSIONS,
    CancelTasks,
    RegisterTask,
    SubmitMany,
    SubmitTask,
    WaitTasks,
    WaitUntil,
)
from schedulemesh.api.values import MAX_NAMES
from schedulemesh.domain.placement import MAX_BUNDLES, MAX_SIZES
from schedulemesh.domain.resources import parse_resources
from schedulemesh.domain.saved_state import SavedState
from schedulemesh.errors import InvalidRequestError
from schedulemesh.protocol.agents import key_of
from schedulemesh.protocol.msgpack_head import Reader
from schedulemesh.protocol.requests import (
    MAX_VALUES,
    decode_request,
    encode_request,
    stored_in,
)
from tests.counted_calls import calls_of
from tests.server.work import CLASS, submission

LARGE = b"x" * 3_000_000


@pytest.fixture(autouse=True, scope="module")
def decoders_are_made():
    """They are made for the first request of a process, in thousands of calls."""
    decode_request(encode_request(GetReportedMetrics()))


def hostile(tag, **fields):
    """A request as no client of ours makes it."""
    return msgspec.msgpack.encode({"request": tag, **fields})


def decoded_objects(data):
    """Refuse a request; how many objects of Python were made of it meanwhile, about."""

    def refused():
        with pytest.raises(InvalidRequestError):
            decode_request(data)

    return calls_of(refused)[1]


@pytest.mark.parametrize(
    "data",
    [
        hostile("cancel_tasks", task_ids=["t"] * 500_000),
        hostile("wait_tasks", task_ids=["t"] * 500_000, until="ended", enough=1, wait_s=0.0),
        hostile("end_orphans", names=["t"] * 500_000),
        hostile("query_events", kinds=["t"] * 500_000),
        hostile("get_reported_metrics", names=["t"] * 500_000),
        hostile("submit_many", submissions=[{}] * 500_000),
        hostile("change_policy", changes={"protected_pools": ["p"] * 2_000_000}, client="c"),
        hostile("submit_task", blobs={}, junk=[0] * 2_000_000),
        msgspec.msgpack.encode({"junk": [0] * 2_000_000, "request": "submit_task"}),
        msgspec.msgpack.encode([0] * 2_000_000),
        hostile("change_policy", changes={"a": [[]] * (MAX_VALUES + 1)}, client="c"),
        hostile("submit_many", blobs={f"{i:064}": b"" for i in range(MAX_BLOBS + 1)}),
        hostile("submit_many", blobs={f"{i:064}": b"" for i in range(200_000)}),
        hostile("restore_task", request_id="r", saved={"members": [None] * 2_000_000}),
        hostile("restore_task", request_id="r", saved={"state": {}, "payload": [[]] * 2_000_000}),
        hostile("restore_task", request_id="r", saved={}, junk=[[]] * 2_000_000),
        hostile("restore_task", saved={f"k{i}": 0 for i in range(300_000)}),
        b"\xdf\xff\xff\xff\xff" + LARGE,
        b"\x82\xa7request\xabsubmit_task\xa5blobs\xdf\xff\xff\xff\xff" + LARGE,
        LARGE,
    ],
)
def test_too_many_or_too_much_is_refused_before_it_is_looked_at(data):
    assert decoded_objects(data) < 100


def bundled(task_id, sizes=1):
    """A submission with the most bundles, of so many sizes."""
    asked = submission(task_id)
    bundles = tuple(
        parse_resources({"cpu": 1 + i % sizes, "memory": 1}) for i in range(MAX_BUNDLES)
    )
    return msgspec.structs.replace(
        asked, agent=msgspec.structs.replace(asked.agent, bundles=bundles)
    )


def test_as_many_as_are_allowed_are_accepted():
    names = tuple(f"t{i}" for i in range(MAX_NAMES))
    for request in (
        CancelTasks(task_ids=names),
        WaitTasks(task_ids=names, until=WaitUntil.ENDED, enough=1, wait_s=0.0),
        EndOrphans(names=names),
        QueryEvents(kinds=(EVENT_KINDS * 3)[:100]),
        GetReportedMetrics(names=names),
        SubmitMany(submissions=tuple(submission(f"t{i}") for i in range(MAX_SUBMISSIONS))),
        SubmitMany(submissions=(bundled("a", sizes=MAX_SIZES), bundled("b"))),
    ):
        assert decode_request(encode_request(request)) == request


@pytest.mark.parametrize(
    "make",
    [
        lambda: CancelTasks(task_ids=("t",) * (MAX_NAMES + 1)),
        lambda: WaitTasks(
            task_ids=("t",) * (MAX_NAMES + 1), until=WaitUntil.ENDED, enough=1, wait_s=0.0
        ),
        lambda: EndOrphans(names=("t",) * (MAX_NAMES + 1)),
        lambda: QueryEvents(kinds=("t",) * 101),
        lambda: GetReportedMetrics(names=("t",) * (MAX_NAMES + 1)),
        lambda: SubmitMany(submissions=(submission("t"),) * (MAX_SUBMISSIONS + 1)),
        lambda: SubmitMany(submissions=(bundled("t"),) * 3),
        lambda: SubmitTask(submission=bundled("t", sizes=MAX_SIZES + 1)),
        lambda: ListPreemptions(limit=10_001),
        lambda: EvaluatePreemption(priority=1.0, pool_name="p", limit=10_001),
    ],
)
def test_one_more_is_refused_with_the_number(make):
    with pytest.raises(InvalidRequestError, match=r"up to|at most"):
        make()


def test_classes_and_saved_states_may_be_large():
    state = SavedState(
        task=submission("t").task, agent_name="a", source="save_state", saved_at=0.0, state=LARGE
    )
    for request in (
        SubmitTask(submission=submission("t"), blobs={key_of(LARGE): LARGE, key_of(CLASS): CLASS}),
        RegisterTask(task=submission("t").task, agent_name="a", blobs={key_of(LARGE): LARGE}),
        RestoreTask(saved=state, request_id="r"),
    ):
        data = encode_request(request)
        assert len(data) - stored_in(data)[0] < 1_000
        assert decode_request(data) == request


def test_of_large_requests_every_value_is_counted():
    blobs = {f"{i:064}": LARGE if i == 1 else b"" for i in range(3)}
    data = hostile("submit_many", blobs=blobs, submissions=[[0] * 900_000])
    assert stored_in(data)[0] > len(LARGE)
    with pytest.raises(InvalidRequestError, match=f"more than {MAX_VALUES:,} values"):
        decode_request(data)


def test_text_is_not_taken_for_lists():
    # Its bytes are those with which lists begin.
    text = "\u4011" * (MAX_VALUES + 1)
    request = ChangePolicy(changes={"a": text, "b": 1.5, "c": [True, None, -7, 2**40]}, client="c")
    assert decode_request(encode_request(request)) == request


@pytest.mark.parametrize(
    "value",
    [
        *(0, 127, 128, 2**16, 2**40, -1, -32, -33, -(2**15), -(2**31), -(2**40), 1.5),
        *(None, True, False, "", "t", "t" * 40, "t" * 300, "t" * 70_000),
        *(b"", b"b" * 300, b"b" * 70_000, [], [[]] * 20, [0] * 70_000, {}, {"k": {"l": [1]}}),
        {str(i): i for i in range(70_000)},
        *(msgspec.msgpack.Ext(1, b"e" * size) for size in (1, 2, 4, 8, 16, 3, 300, 70_000)),
    ],
)
def test_every_kind_of_value_is_skipped(value):
    data = msgspec.msgpack.encode([value, "end"])
    reader = Reader(data)
    assert reader.size_of_array() == 2
    assert reader.skip(200_000) >= 1
    assert reader.text() == "end"
    assert reader.position == len(data)


def test_what_is_cut_off_is_not_skipped():
    data = msgspec.msgpack.encode({"a": [1, b"bytes", "text", 1.5, {"b": None}]})
    for size in range(len(data)):
        with pytest.raises(ValueError, match="cut off"):
            Reader(data[:size]).skip(100)


def fields_with_lists(kind: type) -> dict[str, Any]:
    """The fields of a request that hold several values, with their types."""
    hints = {f.name: f.type for f in msgspec.inspect.type_info(kind).fields}
    lists = (msgspec.inspect.VarTupleType, msgspec.inspect.ListType)
    return {
        name: part
        for name, hint in hints.items()
        for part in getattr(hint, "types", (hint,))
        if isinstance(part, lists)
    }


def test_every_list_of_every_request_has_a_limit():
    without = [
        f"{kind.__name__}.{name}"
        for kind in CALLS
        for name, hint in fields_with_lists(kind).items()
        if hint.max_length is None
    ]
    assert without == []

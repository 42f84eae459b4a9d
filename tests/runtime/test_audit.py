"""The record of changes: who, when, from where, what, before and after; also of those that were refused."""

from __future__ import annotations

import asyncio

import msgspec
import pytest
from msgspec import json

from schedulemesh.api.agents import DeleteAgent, ListAgents
from schedulemesh.api.audit import ListAuditPage, QueryAudit
from schedulemesh.api.calls import AUDITED, CHANGES
from schedulemesh.api.pages import PageQuery, Selection
from schedulemesh.api.policies import ChangePolicy, ChangeQueuePolicy
from schedulemesh.api.pools import CreatePool, EnsureCohort, EnsurePool, ListPools, ResizePool
from schedulemesh.api.queue import ChangeQueuedTask
from schedulemesh.api.states import RegisterStateHandlers
from schedulemesh.api.tasks import SubmitTask
from schedulemesh.api.tokens import CreateToken, RevokeToken, RotateToken
from schedulemesh.domain.audit import LASTING_CALLS, OPEN, AuditRecord
from schedulemesh.domain.pool import PoolSpec
from schedulemesh.domain.resources import parse_resources
from schedulemesh.domain.tokens import Role, TokenSpec
from schedulemesh.engine.messages.audit_facts import ChangeAnswered, ChangeReceived
from schedulemesh.engine.state import audit as audit_state
from schedulemesh.engine.state.audit import AuditLog, RetentionClass
from schedulemesh.engine.state.mesh_state import MeshState
from schedulemesh.engine.state.snapshot import restored, take_snapshot
from schedulemesh.errors import JournalError
from schedulemesh.protocol.agents import key_of
from schedulemesh.protocol.answers import Listed, Malformed, Refusal
from schedulemesh.protocol.credentials import ENVIRONMENT_VARIABLE, Credential
from schedulemesh.protocol.requests import encode_request
from schedulemesh.runtime.backend import NodeView
from schedulemesh.runtime.security import audit as audit_module
from schedulemesh.runtime.security.audit import _request as audit_request
from schedulemesh.runtime.security.audit import _row as audit_row
from schedulemesh.runtime.security.audit import is_so_already
from schedulemesh.store.journal import InDoubtError
from tests.counted_calls import calls_of
from tests.runtime.test_authentication import FIRST, ask, issue, journal, mesh, start
from tests.server.work import CLASS, CPU, submission

__all__ = ["journal", "mesh", "start"]


def changes(mesh, **wanted):
    """The recorded changes, the newest first."""
    answer = ask(mesh, QueryAudit(**wanted))
    assert isinstance(answer, Listed), answer
    return answer.rows


def test_a_change_of_a_pool_has_its_author_and_what_was_before_and_after(mesh):
    ask(mesh, EnsurePool(name="p", resources=CPU, labels={}))
    grown = EnsurePool(name="p", resources=parse_resources({"cpu": 3}))
    credential = msgspec.msgpack.encode(
        Credential(token=FIRST, job_id="01000000", node_id="ab", pid=7)
    )
    mesh.do(mesh.service.ask(encode_request(grown), ([], []), credential))
    change, first = changes(mesh)
    assert (change["call"], change["token"], change["role"]) == (
        "ensure_pool",
        "first-operator",
        "operator",
    )
    assert change["address"] == "ray job 01000000, node ab, pid 7"
    assert change["outcome"] == "done"
    assert change["request"]["name"] == "p"
    assert change["before"]["resources"] != change["after"]["resources"]
    assert first["before"] is None
    assert first["after"] == change["before"]
    assert first["number"] < change["number"]
    assert first["at"] <= change["at"]


def test_a_policy_change_has_the_fields_that_changed(mesh):
    ask(mesh, ChangePolicy(changes={"min_runtime": 60.0}, client="c"))
    (change,) = changes(mesh, call="change_policy")
    assert change["before"] == {"min_runtime": 0.0}
    assert change["after"] == {"min_runtime": 60.0}


def test_what_is_so_already_is_neither_recorded_nor_a_fact(mesh):
    asked = [
        EnsureCohort(name="company", weight=2.0),
        EnsurePool(name="p", resources=CPU, labels={"a": "b"}, lending={"cohort": "company"}),
        ResizePool(name="p", resources=CPU),
        ChangePolicy(changes={"min_runtime": 60.0}, client="c"),
        ChangeQueuePolicy(changes={"order": "fifo"}, client="c"),
    ]
    for request in asked:
        ask(mesh, request)
    recorded = changes(mesh)
    assert len(recorded) == len(asked) - 1, "the resize is none"
    policy_changes = len(mesh.running.reactor.state.policy_changes)
    for request in asked:
        answer = ask(mesh, request)
        assert not getattr(answer, "refused", None)
    assert changes(mesh) == recorded
    assert len(mesh.running.reactor.state.policy_changes) == policy_changes == 1


def test_who_may_not_change_it_is_recorded_also_where_it_is_so_already(mesh):
    ask(mesh, EnsurePool(name="p", resources=CPU, labels={}))
    viewer = issue(mesh, "viewer", Role.VIEWER)
    assert ask(mesh, EnsurePool(name="p", resources=CPU), viewer).refused.reason == "not_allowed"
    (change,) = changes(mesh, outcome="refused")
    assert (change["call"], change["token"]) == ("ensure_pool", "viewer")


def test_amounts_are_recorded_as_callers_give_them(mesh):
    two = parse_resources({"cpu": 2, "memory": 512, "gpu": 0.5, "custom": {"fpga": 1}})
    ask(mesh, EnsurePool(name="p", resources=two, labels={}))
    ask(mesh, CreatePool(spec=PoolSpec(name="q", resources=two)))
    given = {"cpu": 2.0, "memory": 512.0, "gpu": 0.5, "custom": {"fpga": 1.0}}
    created, ensured = changes(mesh)
    assert created["request"]["spec"]["resources"] == created["after"]["resources"] == given
    assert ensured["request"]["resources"] == ensured["after"]["resources"] == given


def test_without_a_token_the_user_and_host_of_the_client_say_who_it_was(mesh):
    credential = msgspec.msgpack.encode(
        Credential(token=FIRST, job_id="01", node_id="ab", pid=7, user="ada\n, x@lab-1")
    )
    request = EnsurePool(name="p", resources=CPU, labels={})
    mesh.do(mesh.service.ask(encode_request(request), ([], []), credential))
    (change,) = changes(mesh)
    assert change["address"] == "adax@lab-1, ray job 01, node ab, pid 7"
    assert change["who"] == "first-operator"
    record = AuditRecord(number=1, call="drain", address=change["address"])
    assert audit_row(record)["who"] == "adax@lab-1"
    assert (
        audit_row(AuditRecord(number=1, call="drain", address="HTTP server"))["who"]
        == "HTTP server"
    )


def test_changes_at_the_same_time_have_each_its_own_before_and_after(mesh):
    async def together():
        asked = [ChangePolicy(changes={"min_runtime": s}, client="c") for s in (10.0, 20.0, 30.0)]
        credential = msgspec.msgpack.encode(Credential(token=FIRST))
        await asyncio.gather(
            *(mesh.service.ask(encode_request(one), ([], []), credential) for one in asked)
        )

    mesh.do(together())
    recorded = list(reversed(changes(mesh, call="change_policy")))
    before = {"min_runtime": 0.0}
    for change in recorded:
        assert change["before"] == before
        assert change["after"] == change["request"]["changes"]
        before = change["after"]
    assert len(recorded) == 3


def test_refused_changes_are_recorded_also_those_of_other_roles(mesh):
    ask(mesh, EnsurePool(name="p", resources=CPU, labels={}))
    viewer = issue(mesh, "viewer", Role.VIEWER)
    ada = issue(mesh, "ada", Role.SUBMITTER, owner="ada")
    ask(mesh, DeleteAgent(agent_name="x"), viewer)
    submitted = SubmitTask(submission=submission("t", owner="bob"), blobs={key_of(CLASS): CLASS})
    ask(mesh, submitted, ada)
    ask(mesh, RevokeToken(name="nobody", client="c"))
    found = [(c["call"], c["token"], c["reason"]) for c in changes(mesh, outcome="refused")]
    assert found == [
        ("revoke_token", "first-operator", "token_not_found"),
        ("submit_task", "ada", "not_allowed"),
        ("delete_agent", "viewer", "not_allowed"),
    ]
    assert all(c["error"] for c in changes(mesh, outcome="refused"))


def test_submissions_and_queries_that_are_accepted_are_not_recorded(mesh):
    ask(mesh, EnsurePool(name="p", resources=CPU, labels={}))
    before = len(changes(mesh))
    for name in ("first", "t"):
        ask(mesh, SubmitTask(submission=submission(name), blobs={key_of(CLASS): CLASS}))
    ask(mesh, ListPools())
    assert len(changes(mesh)) == before
    ask(mesh, ChangeQueuedTask(task_id="t", priority=7.0, request_id="up"))
    (change,) = changes(mesh, call="change_queued_task")
    assert (change["before"]["priority"], change["after"]["priority"]) == (5.0, 7.0)


def test_no_secret_and_no_hash_is_recorded(mesh):
    secret = issue(mesh, "v", Role.VIEWER)
    state = mesh.running.reactor.state
    text = str(changes(mesh)) + str(state.audit.all())
    assert secret not in text
    assert state.tokens["v"].secret_hash not in text
    (change,) = changes(mesh, call="create_token")
    assert change["after"]["role"] == "viewer"


def test_a_token_in_the_environment_of_an_agent_is_neither_listed_nor_recorded(mesh):
    room = parse_resources({"cpu": 4})
    mesh.backend.free = [NodeView(node_id="node-1", total=room, free=room, labels={})]
    mesh.do(mesh.running.monitor.observe())
    ask(mesh, EnsurePool(name="p", resources=parse_resources({"cpu": 2}), labels={}))
    ada = issue(mesh, "ada", Role.SUBMITTER, owner="ada")
    variables = {"SCHEDULEMESH_TOKEN": FIRST, "MODE": "test"}
    options = json.encode({"runtime_env": {"env_vars": variables}}).decode()
    given = submission("t", owner="bob")
    agent = msgspec.structs.replace(given.agent, options=options)
    given = msgspec.structs.replace(given, agent=agent)
    made = SubmitTask(submission=given, blobs={key_of(CLASS): CLASS})
    assert ask(mesh, made, ada).refused.reason == "not_allowed"
    ask(mesh, made)
    (row,) = ask(mesh, ListAgents()).rows
    shown = {"SCHEDULEMESH_TOKEN": "***", "MODE": "test"}
    assert row["ray_options"] == {"runtime_env": {"env_vars": shown}}
    (change,) = changes(mesh, call="submit_task")
    recorded = json.decode(change["request"]["submission"]["agent"]["options"])
    assert recorded["runtime_env"]["env_vars"] == shown
    assert FIRST not in str(changes(mesh))


def test_every_change_is_recorded_or_is_in_the_history():
    in_history = {"SubmitTask", "SubmitMany", "RegisterTask", "CompleteTask", "SaveTaskState"}
    in_history |= {"ReleaseLease"}
    assert {kind.__name__ for kind in set(CHANGES) - AUDITED} == in_history
    assert set(CHANGES) >= AUDITED


def test_only_operators_read_it(mesh):
    assert QueryAudit.least_role is Role.OPERATOR
    viewer = issue(mesh, "viewer", Role.VIEWER)
    assert ask(mesh, QueryAudit(), viewer).refused.reason == "not_allowed"


def test_the_record_outlives_the_supervisor_and_snapshots(start):
    before = start()
    ask(before, EnsurePool(name="p", resources=CPU, labels={}))
    recorded = changes(before)
    again = start()
    assert changes(again) == recorded
    state = restored([take_snapshot(again.running.reactor.state)])
    assert state.audit.all() == again.running.reactor.state.audit.all()
    ask(again, EnsurePool(name="q", resources=CPU, labels={}))
    assert [c["number"] for c in changes(again)] == [2, 1]


def test_a_change_that_was_interrupted_stays_recorded_as_open(mesh, monkeypatch):
    class Killed(BaseException):
        """The process ends here."""

    async def killed(*_args):
        raise Killed

    monkeypatch.setattr(mesh.requests, "_execute", killed)
    with pytest.raises(Killed):
        ask(mesh, EnsurePool(name="p", resources=CPU, labels={}))
    (record,) = mesh.reloaded().audit.all()
    assert (record.call, record.outcome, record.token) == ("ensure_pool", OPEN, "first-operator")


@pytest.mark.parametrize(
    ("error", "outcome"),
    [(JournalError("a note is unreadable"), "refused"), (InDoubtError("fsync failed"), OPEN)],
)
def test_a_change_is_open_where_it_may_have_been_carried_out(mesh, monkeypatch, error, outcome):
    async def fails(*_args):
        raise error

    monkeypatch.setattr(mesh.requests, "_execute", fails)
    refused = ask(mesh, EnsurePool(name="p", resources=CPU, labels={})).refused
    assert (refused.reason, refused.error) == ("journal_unavailable", str(error))
    (record,) = mesh.reloaded().audit.all()
    assert (record.outcome, record.error) == (outcome, str(error) if outcome == "refused" else "")


def test_a_change_that_cannot_be_recorded_is_not_carried_out(mesh, monkeypatch):
    async def full(*_args):
        raise JournalError("the disk is full")

    monkeypatch.setattr(mesh.running.reactor, "step", full)
    refused = ask(mesh, EnsurePool(name="p", resources=CPU, labels={})).refused
    assert refused.reason == "journal_unavailable"
    assert "p" not in mesh.running.reactor.state.ledger.accounts


def received(number, at=0.0, call="cancel_task", token="t", role=""):
    record = AuditRecord(number=number, at=at, call=call, token=token, role=role)
    return ChangeReceived(record=record)


def numbers(log):
    """What is kept, after checking that a restored log would keep the same."""
    again = AuditLog()
    again.restore(log.all(), log.next_number)
    assert again.all() == log.all()
    assert again.numbers == log.numbers
    return [record.number for record in log.all()]


@pytest.mark.parametrize(
    ("call", "token", "outcome"),
    [
        ("cancel_task", "submitter", "done"),
        ("cancel_tasks", "submitter", "open"),
        ("change_policy", "viewer", "refused"),
        ("preempt_task", "operator", "done"),
        ("change_policy", "another operator", "done"),
    ],
)
def test_no_number_of_other_changes_pushes_changes_of_the_rules_out(call, token, outcome):
    log = AuditLog()
    calls = ("change_policy", "resize_pool", "revoke_token")
    for number, made in enumerate(calls, 1):
        log.updates[ChangeReceived](received(number, call=made, token="operator"))
        log.updates[ChangeAnswered](ChangeAnswered(number=number, outcome="done"))
    log.updates[ChangeReceived](received(4, token="somebody"))
    for number in range(5, 60_000):
        log.updates[ChangeReceived](received(number, call=call, token=token))
        if outcome != OPEN:
            log.updates[ChangeAnswered](ChangeAnswered(number=number, outcome=outcome))
    assert numbers(log)[:4] == [1, 2, 3, 4]
    assert len(log.all()) - 4 == (
        50_000
        if outcome == "done" and call == "change_policy"
        else 500
        if outcome == "refused"
        else 1_000
    )


def test_the_operator_of_a_pool_pushes_out_no_change_of_an_operator(monkeypatch):
    monkeypatch.setitem(audit_state.KEPT, RetentionClass.LASTING, 3)
    log = AuditLog()
    # That of an operator, and that of the lead's token while it was an operator's.
    log.updates[ChangeReceived](received(1, call="resize_pool", token="operator", role="operator"))
    log.updates[ChangeReceived](received(2, call="resize_pool", token="lead", role="operator"))
    for number in range(3, 21):
        call = "cancel_task" if number > 10 else "resize_pool"
        made = received(number, call=call, token="lead", role="pool_operator")
        log.updates[ChangeReceived](made)
        log.updates[ChangeAnswered](ChangeAnswered(number=number, outcome="done"))
    assert numbers(log) == [1, 2, 8, 9, 10, *range(11, 21)]


def test_a_token_keeps_its_latest_changes_and_its_latest_refused_ones(monkeypatch):
    monkeypatch.setitem(audit_state.KEPT, RetentionClass.OTHER, 3)
    monkeypatch.setitem(audit_state.KEPT, RetentionClass.REFUSED, 2)
    log = AuditLog()
    for number in range(1, 21):
        log.updates[ChangeReceived](received(number))
        outcome = "done" if number in (1, 2) else "refused"
        log.updates[ChangeAnswered](ChangeAnswered(number=number, outcome=outcome))
    assert numbers(log) == [1, 2, 19, 20]


def test_old_changes_are_forgotten(monkeypatch):
    monkeypatch.setattr(audit_state, "KEPT_S", 100.0)
    log = AuditLog()
    for number, at in ((1, 0.0), (2, 50.0), (3, 120.0)):
        log.updates[ChangeReceived](received(number, at))
    assert numbers(log) == [2, 3]


def test_changes_that_are_kept_longest_are_those_that_only_operators_make():
    tags = {kind.__struct_config__.tag: kind for kind in CHANGES}
    assert set(tags) >= LASTING_CALLS
    roles = {tags[call].least_role for call in LASTING_CALLS}
    assert roles == {Role.OPERATOR, Role.POOL_OPERATOR}
    of_rules = {tag for tag in tags if "token" in tag or "pool" in tag or "policy" in tag}
    assert of_rules <= LASTING_CALLS


@pytest.mark.parametrize(
    "value",
    [
        {f"k{i}": {"a": ["b"]} for i in range(20_000)},
        [[]] * 90_000,
        {"options": [[{"options": "text"}]] * 30_000},
        {"n" * 200: 1, **{f"{i}" + "n" * 200: [0] * 100 for i in range(5_000)}},
    ],
)
def test_the_record_of_a_large_request_takes_no_longer_than_that_of_a_small_one(value):
    request = ChangePolicy(changes={"a": value}, client="c")
    assert calls_of(lambda: audit_request(request))[1] < 10_000
    shortened = json.decode(audit_request(request))["shortened"]
    assert json.encode({"changes": {"a": value}}).decode().startswith(shortened)


def test_what_is_strange_is_recorded_all_the_same(mesh):
    deep = []
    for _ in range(300):
        deep = [deep]
    strange = [
        deep,
        msgspec.msgpack.Ext(3, b"x"),
        {"options": f"{ENVIRONMENT_VARIABLE} {{"},
        {"options": f'["{ENVIRONMENT_VARIABLE}"]'},
        {"options": f'{{"runtime_env": "{ENVIRONMENT_VARIABLE}"}}'},
        float("nan"),
    ]
    for name in ("min_runtime", "protected_pools", "label_preemption_rules"):
        for value in strange:
            answer = ask(mesh, ChangePolicy(changes={name: value}, client="c"))
            assert isinstance(answer, Malformed), (name, value, answer)
    recorded = changes(mesh, call="change_policy")
    assert len(recorded) == 3 * len(strange)
    assert ENVIRONMENT_VARIABLE not in str([change["request"] for change in recorded])


def test_bytes_and_secrets_are_not_recorded(mesh):
    credentials = {"secret_hash": "f" * 64, "client": "c", "request_id": "r"}
    spec = TokenSpec(name="t", role=Role.VIEWER, secret_hash=credentials["secret_hash"])
    created = audit_request(CreateToken(spec=spec, client="c", request_id="r"))
    rotated = audit_request(RotateToken(name="t", lifetime_s=None, **credentials))
    handlers = RegisterStateHandlers(
        pool_name="p", preserver_key=key_of(CLASS), blobs={key_of(CLASS): CLASS}
    )
    assert json.decode(created) == {"spec": {"name": "t", "role": "viewer", "label_values": {}}}
    assert json.decode(rotated) == {"name": "t"}
    assert json.decode(audit_request(handlers)) == {
        "pool_name": "p",
        "preserver_key": key_of(CLASS),
    }


@pytest.mark.parametrize(
    ("name", "value", "so_already"),
    [
        ("min_runtime", 0, True),
        ("min_runtime", 0.0, True),
        ("min_runtime", 1.0, False),
        ("protected_pools", [], True),
        ("protected_pools", ["p"], False),
        ("label_preemption_rules", {}, True),
        ("label_preemption_rules", {"k": {"a": ["b"]}}, False),
        ("public", 1, False),
        ("none", None, False),
    ],
)
def test_a_policy_that_is_so_already_is_known_by_its_values(name, value, so_already):
    assert is_so_already(MeshState(), ChangePolicy(changes={name: value}, client="c")) == so_already


def with_records(mesh, count):
    """Have so many changes on record, of five tokens, every third of them refused."""
    records = [
        AuditRecord(
            number=number,
            at=float(number),
            call=("drain", "ensure_pool")[number % 2],
            token=f"t{number % 5}" if number % 7 else "",
            address="ada@host",
            outcome="refused" if number % 3 == 0 else "done",
        )
        for number in range(1, count + 1)
    ]

    async def restored_log():
        mesh.running.reactor.state.audit.restore(records, count + 1)

    mesh.do(restored_log())


def rows_made(monkeypatch):
    """The numbers of the records of which rows are made from now on."""
    made = []

    def row(record):
        made.append(record.number)
        return audit_row(record)

    monkeypatch.setattr(audit_module, "_row", row)
    return made


def audit_page(mesh, **query):
    query = {"order": (("number", False),), "limit": 7, **query}
    return ask(mesh, ListAuditPage(page=PageQuery(**query)))


@pytest.mark.parametrize("newest_first", [False, True])
def test_pages_of_the_audit_have_every_change_once_and_make_no_other_rows(
    mesh, monkeypatch, newest_first
):
    with_records(mesh, 100)
    made, numbers, after, more = rows_made(monkeypatch), [], None, True
    while more:
        facts = audit_page(mesh, order=(("number", newest_first),), after=after).facts
        numbers += [row["number"] for row in facts["items"]]
        assert facts["total"] == 100
        more, after = facts["more"], (facts["items"][-1]["number"],)
    expected = [*range(1, 101)]
    assert numbers == made == (expected[::-1] if newest_first else expected)


@pytest.mark.parametrize(
    "query",
    [
        {"fields": (("token", ("t1", "t2")),)},
        {"fields": (("outcome", ("refused",)), ("call", ("drain",)))},
        {"fields": (("who", ("ada@host",)),)},
        {"fields": (("number", (5.0,)),)},
        {"order": (("token", True), ("number", False))},
        {"order": (("who", False), ("at", True), ("number", False)), "limit": 30},
    ],
)
def test_a_page_of_the_audit_is_the_one_that_all_rows_would_give(mesh, monkeypatch, query):
    with_records(mesh, 100)
    expected = Selection(
        PageQuery(**{"order": (("number", False),), "limit": 7, **query}), dict.get
    )
    expected.add(changes(mesh, limit=500)[::-1])
    made = rows_made(monkeypatch)
    facts = audit_page(mesh, **query).facts
    assert facts["items"] == expected.selected().items
    assert (facts["total"], facts["more"]) == expected.selected()[1:]
    assert made == [row["number"] for row in facts["items"]]


def test_a_cursor_of_another_listing_is_none_of_the_audit(mesh):
    with_records(mesh, 10)
    assert isinstance(audit_page(mesh, after=("text",)), Malformed)


def test_only_operators_read_pages_of_the_audit(mesh):
    viewer = issue(mesh, "v", Role.VIEWER)
    assert isinstance(ask(mesh, ListAuditPage(page=PageQuery(order=())), viewer), Refusal)


def test_a_query_of_the_audit_looks_at_the_newest_until_there_are_enough(mesh, monkeypatch):
    with_records(mesh, 5_000)
    looked_at = []
    monkeypatch.setattr(
        audit_module, "_is_about", lambda _, record: looked_at.append(record.number) or True
    )
    assert [row["number"] for row in changes(mesh, limit=3)] == [5_000, 4_999, 4_998]
    assert [row["number"] for row in changes(mesh, limit=2, before=100)] == [99, 98]
    assert [row["number"] for row in changes(mesh, limit=9, after=4_998)] == [5_000, 4_999]
    assert len(looked_at) == 1_000 + 99 + 2


def test_a_query_of_the_audit_goes_no_further_back_than_it_asks_for(mesh):
    with_records(mesh, 3_000)
    rows = changes(mesh, since=2_998.0, limit=500)
    assert [row["number"] for row in rows] == [3_000, 2_999, 2_998]
    # 2,996 came without a token.
    assert [row["number"] for row in changes(mesh, token="t1", since=2_990.0)] == [2_991]

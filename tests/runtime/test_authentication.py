"""Who may call the supervisor over Ray once calls need a token."""

from __future__ import annotations

import asyncio
import logging

import msgspec
import pytest

from schedulemesh.api.agents import DeleteAgent
from schedulemesh.api.calls import CALLS
from schedulemesh.api.metrics import GetMetrics
from schedulemesh.api.nodes import Drain
from schedulemesh.api.policies import ChangePolicy, GetPolicy
from schedulemesh.api.pools import EnsurePool, ListPools
from schedulemesh.api.preemption import PreemptTask
from schedulemesh.api.queue import ChangeQueuedTask
from schedulemesh.api.states import GetSavedState, RestoreTask, SaveTaskState
from schedulemesh.api.tasks import (
    CancelTask,
    CancelTasks,
    CompleteTask,
    GetResult,
    ListTasks,
    RegisterTask,
    SetTimeLimit,
    SubmitTask,
)
from schedulemesh.api.tokens import ChangeToken, CreateToken, ListTokens, RevokeToken, RotateToken
from schedulemesh.config.auth import AuthSettings, parse_auth
from schedulemesh.domain.payloads import JobPayload
from schedulemesh.domain.resources import parse_resources
from schedulemesh.domain.saved_state import SavedState
from schedulemesh.domain.task import TaskSpec
from schedulemesh.domain.tokens import Role, TokenSpec
from schedulemesh.engine.state.snapshot import restored, take_snapshot
from schedulemesh.errors import InvalidRequestError, NotAllowedError, SchedulerUnavailableError
from schedulemesh.protocol.agents import MetricsReport, key_of, pack, unpack
from schedulemesh.protocol.answers import Hello, Listed, read_answer
from schedulemesh.protocol.callers import TokenCaller, bound
from schedulemesh.protocol.credentials import Credential, hash_of, new_secret, parse_secret
from schedulemesh.protocol.requests import encode_request
from schedulemesh.runtime.backend import NodeView
from tests.runtime.composition import InThread, stored_bytes, supervisor
from tests.runtime.fake_backend import FakeBackend
from tests.runtime.request_samples import allowed, classes, refused_by_role, sample
from tests.server.work import CLASS, CPU, submission

FIRST = new_secret()
AUTH = AuthSettings(
    required=True, first_token_hash=hash_of(FIRST), process_key=b"of the supervisor"
)


def sent(token="", **origin):
    """What a client with this token sends."""
    return msgspec.msgpack.encode(Credential(token=token, **origin))


@pytest.fixture
def journal(tmp_path):
    """The file of the journal."""
    return tmp_path / "j.sqlite"


@pytest.fixture
def start(journal):
    """Starts a supervisor on the journal, after the one before has ended."""
    running = []

    def started(auth=AUTH):
        while running:
            running.pop().close()
        running.append(InThread(journal, auth=auth))
        return running[0]

    yield started
    for mesh in running:
        mesh.close()


@pytest.fixture
def mesh(start):
    """A supervisor whose calls need a token."""
    return start()


def ask(mesh, request, token=FIRST):
    """The answer to a client with this token."""
    answer = mesh.do(mesh.service.ask(encode_request(request), ([], []), sent(token)))
    return read_answer(answer[0] if isinstance(answer, tuple) else answer)


def issue(mesh, name, role, lifetime_s=None, **limits):
    """The secret of a new token."""
    secret = new_secret()
    spec = TokenSpec(name=name, role=role, secret_hash=hash_of(secret), **limits)
    given = {"client": "test", "request_id": f"issue {name}"}
    answer = ask(mesh, CreateToken(spec=spec, lifetime_s=lifetime_s, **given))
    assert not hasattr(answer, "refused"), answer
    return secret


def refused(mesh, token):
    """The reason for which a client with this token does not see the pools; None: it does."""
    answer = ask(mesh, ListPools(), token)
    return None if isinstance(answer, Listed) else answer.refused.reason.value


def test_every_request_needs_an_accepted_token(mesh):
    assert refused(mesh, FIRST) is None
    for token in ("", "guess", new_secret(), FIRST.upper(), f" {FIRST}", f"{FIRST}\n"):
        assert refused(mesh, token) == "token_not_accepted", repr(token)
    for credential in (b"", b"\xc1", b"x" * 100_000, msgspec.msgpack.encode(["a", 1, 2, {}])):
        data = encode_request(ListPools())
        answer = read_answer(mesh.do(mesh.service.ask(data, ([], []), credential)))
        assert answer.refused.reason == "token_not_accepted"


def test_a_refusal_says_what_to_do_and_nothing_of_the_token(mesh):
    none = ask(mesh, ListPools(), "").refused.error
    assert "SCHEDULEMESH_TOKEN" in none
    assert "schedulemesh tokens create" in none
    secret = new_secret()
    assert secret not in str(ask(mesh, ListPools(), secret))


def test_a_supervisor_says_who_it_is_to_holders_of_tokens_only(mesh):
    hello = unpack(mesh.do(mesh.service.hello(sent(FIRST))), Hello)
    assert (hello.settings.auth, hello.owner) == (AuthSettings(required=True), "")
    ada = issue(mesh, "ada", Role.SUBMITTER, owner="ada")
    assert unpack(mesh.do(mesh.service.hello(sent(ada))), Hello).owner == "ada"
    for token in ("", "guess"):
        with pytest.raises(NotAllowedError):
            mesh.do(mesh.service.hello(sent(token)))


def test_roles_and_limits_hold_over_ray(mesh):
    ask(mesh, EnsurePool(name="p", resources=CPU, labels={}))
    viewer = issue(mesh, "viewer", Role.VIEWER)
    ada = issue(mesh, "ada", Role.SUBMITTER, owner="ada", pools=("p",), max_priority=4.0)
    assert ask(mesh, DeleteAgent(agent_name="x"), viewer).refused.reason == "not_allowed"
    assert ask(mesh, ListTokens(), ada).refused.reason == "not_allowed"
    for how, within in (
        ({"owner": "ada", "priority": 4.0}, True),
        ({"owner": "bob", "priority": 4.0}, False),
        ({"owner": "ada", "priority": 4.5}, False),
        ({"owner": "ada", "priority": 4.0, "pool": "q"}, False),
    ):
        answer = ask(mesh, SubmitTask(submission=submission(f"t{how}"[:60], **how)), ada)
        assert (getattr(answer, "refused", None) is None) == within, answer


def test_a_token_ends_at_once_when_it_is_revoked_or_rotated_or_expires(mesh, monkeypatch):
    secret = issue(mesh, "v", Role.VIEWER)
    assert refused(mesh, secret) is None
    again = new_secret()
    given = {"client": "test", "request_id": "again"}
    ask(mesh, RotateToken(name="v", secret_hash=hash_of(again), **given))
    assert (refused(mesh, secret), refused(mesh, again)) == ("token_not_accepted", None)
    ask(mesh, RevokeToken(name="v", client="test"))
    assert refused(mesh, again) == "token_not_accepted"
    brief = issue(mesh, "brief", Role.VIEWER, lifetime_s=1000.0)
    assert refused(mesh, brief) is None
    later = mesh.running.reactor.now() + 1001
    monkeypatch.setattr(mesh.running.reactor, "now", lambda: later)
    assert refused(mesh, brief) == "token_not_accepted"


def test_two_tokens_have_no_secret_in_common(mesh):
    spec = TokenSpec(name="twin", role=Role.VIEWER, secret_hash=hash_of(FIRST))
    answer = ask(mesh, CreateToken(spec=spec, client="test", request_id="twin"))
    assert answer.outcome.reason == "token_exists"


def test_authentication_stays_after_a_restart_whatever_the_settings_say(start):
    start()
    intruder = new_secret()
    for auth in (AuthSettings(), AuthSettings(required=True, first_token_hash=hash_of(intruder))):
        again = start(auth)
        assert refused(again, "") == "token_not_accepted"
        assert refused(again, intruder) == "token_not_accepted"
        assert refused(again, FIRST) is None


def test_it_is_in_the_snapshot_too(mesh):
    state = restored([take_snapshot(mesh.running.reactor.state)])
    assert state.tokens.required
    assert state.tokens.by_hash == mesh.running.reactor.state.tokens.by_hash
    assert list(state.tokens) == ["first-operator"]


def test_only_an_operator_shuts_it_down(mesh):
    ada = issue(mesh, "ada", Role.SUBMITTER, owner="ada")
    for token in ("", "guess", ada):
        with pytest.raises(NotAllowedError):
            mesh.do(mesh.service.shutdown(sent(token)))
    assert refused(mesh, FIRST) is None
    assert mesh.do(mesh.service.shutdown(sent(FIRST))) is None


def test_the_log_says_who_shuts_it_down(mesh, caplog):
    with caplog.at_level(logging.INFO):
        mesh.do(mesh.service.shutdown(sent(FIRST, job_id="01000000", node_id="ab", pid=7)))
    lines = [line for line in caplog.messages if line.startswith("shutdown by")]
    assert lines == ["shutdown by token 'first-operator', ray job 01000000, node ab, pid 7"]
    assert FIRST not in caplog.text


def test_agents_call_with_their_own_key_only(mesh):
    key = mesh.running.agents.key_of("a", 1)
    other = mesh.running.agents.key_of("a", 2)
    report = pack(MetricsReport(agent_name="a", incarnation=1, metrics=msgspec.Raw(b"\x80")))
    service = mesh.service
    calls = (
        lambda given: service.poll("a", 1, given),
        lambda given: service.last_saved("a", 1, given),
        lambda given: service.agent_restarted("a", 1, b"", given),
        lambda given: service.report_metrics(report, given),
    )
    for call in calls:
        for wrong in (b"", other, sent(FIRST), "text"):
            with pytest.raises(NotAllowedError):
                mesh.do(call(wrong))
    assert mesh.do(service.last_saved("a", 1, key)) is None
    assert mesh.do(service.report_metrics(report, key)) is False


def test_two_tokens_with_the_same_request_id_do_not_get_each_others_answers(mesh):
    ask(mesh, EnsurePool(name="p", resources=parse_resources({"cpu": 4}), labels={}))
    ada = issue(mesh, "ada", Role.SUBMITTER, owner="ada")
    bob = issue(mesh, "bob", Role.SUBMITTER, owner="bob")

    def submit(task_id, owner, token):
        made = msgspec.structs.replace(submission(task_id, owner=owner), request_id="the same")
        return ask(mesh, SubmitTask(submission=made, blobs={key_of(CLASS): CLASS}), token).outcome

    first = submit("of-ada", "ada", ada)
    assert submit("of-bob", "bob", bob) != first
    assert submit("of-ada", "ada", ada) == first
    assert {row["task_id"] for row in ask(mesh, ListTasks()).rows} == {"of-ada", "of-bob"}


def test_a_client_is_one_of_its_token_whatever_it_says(mesh):
    ada = issue(mesh, "ada", Role.OPERATOR)
    for seconds, client in ((4.0, "host:1"), (5.0, "first-operator/host:1")):
        ask(mesh, ChangePolicy(changes={"min_runtime": seconds}, client=client), ada)
    ask(mesh, ChangePolicy(changes={"min_runtime": 6.0}, client="host:1"))
    changes = ask(mesh, GetPolicy()).facts["changes"]
    clients = [change["client"] for change in changes]
    assert clients == ["ada/host:1", "ada/first-operator|host:1", "first-operator/host:1"]


def test_quota_that_is_held_for_a_client_is_that_of_its_token():
    def named(token, client):
        spec = TokenSpec(name=token, role=Role.OPERATOR, secret_hash="a" * 64)
        made = msgspec.structs.replace(submission("t"), client=client)
        return bound(SubmitTask(submission=made), TokenCaller(token=spec)).submission

    seen = [
        named(*of)
        for of in (("a", "h:1"), ("b", "h:1"), ("a/b", "h:1"), ("a", "b/h:1"), ("a" * 253, "h:1"))
    ]
    assert len({one.client for one in seen}) == len({one.request_id for one in seen[:3]}) + 2 == 5
    assert {one.task.task_id for one in seen} == {"t"}
    assert named("a", None).client is None


def test_metrics_of_an_agent_without_a_task_are_reported_by_operators_only(mesh):
    report = pack(MetricsReport(agent_name="own", incarnation=None, metrics=msgspec.Raw(b"\x80")))
    ada = issue(mesh, "ada", Role.SUBMITTER, owner="ada")
    with pytest.raises(NotAllowedError):
        mesh.do(mesh.service.report_metrics(report, sent(ada)))
    assert mesh.do(mesh.service.report_metrics(report, sent(FIRST))) is False


def test_metrics_of_other_processes_need_a_token(mesh):
    report = pack(MetricsReport(agent_name="own", incarnation=None, metrics=msgspec.Raw(b"\x80")))
    viewer = issue(mesh, "viewer", Role.VIEWER)
    for token in ("", "guess", viewer):
        with pytest.raises(NotAllowedError):
            mesh.do(mesh.service.report_metrics(report, sent(token)))
    assert mesh.do(mesh.service.report_metrics(report, sent(FIRST))) is False


def test_only_the_process_of_the_http_api_calls_on_behalf_of_others(mesh):
    caller = TokenCaller(
        token=mesh.running.reactor.state.tokens["first-operator"], address="forged"
    )
    data = encode_request(ListPools())
    for key in (b"", b"guess", sent(FIRST)):
        with pytest.raises(NotAllowedError):
            mesh.do(mesh.service.ask_as(pack(caller), data, key))
        with pytest.raises(NotAllowedError):
            mesh.do(mesh.service.http_serves("http://evil", key))
    key = mesh.service._authentication.http_key
    assert isinstance(read_answer(mesh.do(mesh.service.ask_as(pack(caller), data, key))), Listed)
    assert isinstance(read_answer(mesh.do(mesh.service.ask(data, ([], []), key))), Listed)


def test_the_keys_of_processes_outlive_the_supervisor(start):
    before, after = [
        (mesh.running.agents.key_of("a", 1), mesh.service._authentication.http_key)
        for mesh in (start() for _ in range(2))
    ]
    assert before == after


def test_a_supervisor_that_cannot_recover_is_ended_with_the_first_token_only(journal):
    journal.write_bytes(b"no journal")

    async def story():
        service = supervisor(FakeBackend(), journal, auth=AUTH)
        with pytest.raises(SchedulerUnavailableError):
            await service.hello(sent(FIRST))
        with pytest.raises(NotAllowedError, match="journal cannot be read"):
            await service.shutdown(sent(new_secret()))
        await service.shutdown(sent(FIRST))

    asyncio.run(story())


def test_failures_are_counted_and_the_log_has_few_lines_and_no_token(mesh, caplog):
    guess = new_secret()
    with caplog.at_level(logging.INFO):
        for _ in range(50):
            refused(mesh, guess)
    lines = [line for line in caplog.text.splitlines() if "without an accepted token" in line]
    assert len(lines) == 1
    assert guess not in caplog.text
    assert mesh.service._authentication.failures == {"ray": 50, "http": 0}
    text = ask(mesh, GetMetrics()).facts["text"]
    assert 'schedulemesh_authentication_failures_total{way="ray"} 50' in text


def test_where_a_call_comes_from_is_recorded_as_short_ids(mesh, caplog):
    forged = Credential(job_id="01\n[INFO] done by root", node_id="f" * 100_000, pid=7)
    assert forged.address == f"ray job 01INFOdonebyroot, node {'f' * 64}, pid 7"
    data = encode_request(ListPools())
    with caplog.at_level(logging.INFO):
        mesh.do(mesh.service.ask(data, ([], []), msgspec.msgpack.encode(forged)))
    (line,) = [line for line in caplog.messages if "without an accepted token" in line]
    assert "\n" not in line
    assert len(line) < 600


def test_no_secret_is_shown_or_stored(mesh, tmp_path):
    assert FIRST not in repr(Credential(token=FIRST))
    assert "supervisor" not in repr(AUTH)
    files = stored_bytes(tmp_path)
    assert FIRST.encode() not in files
    assert AUTH.process_key not in files


@pytest.mark.parametrize("given", ["", "short", "x" * 513, "with space in it all", 7, b"bytes" * 9])
def test_what_is_no_token_is_refused_without_showing_it(given):
    with pytest.raises(InvalidRequestError) as error:
        parse_secret(given, "token")
    assert "with space" not in str(error.value)
    assert "bytes" not in str(error.value)


def test_auth_is_token_or_none():
    assert parse_auth("token") is True
    assert parse_auth(None) is False
    with pytest.raises(InvalidRequestError, match="allowed are"):
        parse_auth("password")


def test_every_call_is_answered(mesh):
    assert set(mesh.requests._handlers) == set(CALLS)


def test_every_request_is_allowed_or_refused_by_role(mesh):
    tokens = {
        Role.VIEWER: issue(mesh, "viewer", Role.VIEWER),
        Role.SUBMITTER: issue(mesh, "submitter", Role.SUBMITTER, owner="ada"),
        Role.POOL_OPERATOR: issue(mesh, "lead", Role.POOL_OPERATOR, pools=("none",)),
        Role.OPERATOR: issue(mesh, "operator", Role.OPERATOR),
    }
    for cls in classes():
        request = sample(cls)
        assert ask(mesh, request, "").refused.reason == "token_not_accepted"
        for role, token in tokens.items():
            answer = ask(mesh, request, token)
            assert refused_by_role(answer) != allowed(role, cls), (cls, role, answer)
            # What an operator of pools may not change of them: see test_pool_operators.
            if role is not Role.POOL_OPERATOR and hasattr(answer, "refused") and allowed(role, cls):
                assert answer.refused.reason not in ("not_allowed", "token_not_accepted"), answer


def test_a_forged_owner_is_refused_and_others_tasks_are_out_of_reach(mesh):
    ada = issue(mesh, "ada", Role.SUBMITTER, owner="ada")
    bob = issue(mesh, "bob", Role.SUBMITTER, owner="bob")
    ask(mesh, EnsurePool(name="p", resources=CPU, labels={}))
    for name in ("first", "of-ada"):
        made = SubmitTask(submission=submission(name, owner="ada"), blobs={key_of(CLASS): CLASS})
        assert not hasattr(ask(mesh, made, ada), "refused")
    for request in (
        CompleteTask(task_id="first", request_id="1"),
        CancelTask(task_id="of-ada", request_id="2"),
        CancelTasks(task_ids=("of-ada",)),
        ChangeQueuedTask(task_id="of-ada", held=True, request_id="3"),
        GetResult(task_id="first"),
        SaveTaskState(task_id="first"),
        GetSavedState(task_id="first"),
    ):
        assert ask(mesh, request, bob).refused.reason == "not_allowed", request
    held = ChangeQueuedTask(task_id="of-ada", held=True, request_id="4")
    assert not hasattr(ask(mesh, held, ada), "refused")
    front = ChangeQueuedTask(task_id="of-ada", to_front=True, request_id="5")
    assert ask(mesh, front, ada).refused.reason == "not_allowed"


def test_a_submitter_shortens_the_time_limits_of_its_own_tasks_and_lengthens_none(mesh):
    ada = issue(mesh, "ada", Role.SUBMITTER, owner="ada")
    bob = issue(mesh, "bob", Role.SUBMITTER, owner="bob")
    ask(mesh, EnsurePool(name="p", resources=CPU, labels={}))
    made = SubmitTask(submission=submission("t", owner="ada"), blobs={key_of(CLASS): CLASS})
    ask(mesh, made, ada)

    def limit(seconds, who, number):
        request = SetTimeLimit(
            task_id="t", max_run_s=seconds, may_lengthen=True, request_id=f"limit {number}"
        )
        return ask(mesh, request, who)

    assert limit(60.0, bob, 1).refused.reason == "not_allowed"
    assert not hasattr(limit(3600.0, ada, 2), "refused")
    assert limit(7200.0, ada, 3).outcome.reason == "not_allowed"
    assert "only an operator lengthens it" in limit(7200.0, ada, 4).outcome.error


@pytest.fixture
def room(mesh):
    """Two pools with room, and the tokens of two submitters: ada's is for one of the pools only."""
    cpus = parse_resources({"cpu": 4})
    mesh.backend.free = [NodeView(node_id="node-1", total=cpus, free=cpus, labels={})]
    mesh.do(mesh.running.monitor.observe())
    for name in ("p", "q"):
        ask(mesh, EnsurePool(name=name, resources=parse_resources({"cpu": 2}), labels={}))
    return issue(mesh, "ada", Role.SUBMITTER, owner="ada", pools=("p",)), issue(
        mesh, "bob", Role.SUBMITTER, owner="bob"
    )


def submit(mesh, task_id, token=FIRST, **how):
    # Answered when it runs: only a running task is preempted.
    wanted = msgspec.structs.replace(submission(task_id, **how), until_runs=True)
    made = SubmitTask(submission=wanted, blobs={key_of(CLASS): CLASS})
    return ask(mesh, made, token)


def test_a_submitter_registers_no_task_on_an_agent_of_others(mesh, room):
    ada, bob = room
    for task_id, owner, pool in (("t", "bob", "p"), ("u", "ada", "q")):
        assert not hasattr(submit(mesh, task_id, owner=owner, pool=pool), "refused")
        mine = RegisterTask(
            task=TaskSpec(task_id="mine", owner="ada"), agent_name=f"{task_id}-agent"
        )
        assert ask(mesh, mine, ada).refused.reason == "not_allowed"
    submit(mesh, "own", ada, owner="ada")
    mine = RegisterTask(task=TaskSpec(task_id="mine", owner="ada"), agent_name="own-agent")
    assert not hasattr(ask(mesh, mine, ada), "refused")
    assert ask(mesh, mine, bob).refused.reason == "not_allowed"


@pytest.mark.parametrize(("owner", "pool"), [("bob", "p"), ("ada", "q")])
def test_a_submitter_restores_what_is_its_own_whatever_the_request_says(mesh, room, owner, pool):
    ada, _bob = room
    submit(mesh, "t", owner=owner, pool=pool)
    evicted = ask(mesh, PreemptTask(task_id="t", request_id="evict"))
    assert [task.task_id for task in evicted.evicted] == ["t"]
    forged = SavedState(
        task=TaskSpec(task_id="t", owner="ada"), agent_name="", source="given", saved_at=0.0
    )
    answer = ask(mesh, RestoreTask(saved=forged, request_id="restore"), ada)
    assert answer.refused.reason == "not_allowed"
    assert not mesh.running.reactor.state.running.by_id
    assert not hasattr(ask(mesh, RestoreTask(saved=forged, request_id="again")), "refused")


def test_a_submitter_takes_no_id_of_a_task_of_others(mesh, room):
    ada, bob = room
    submit(mesh, "t", bob, owner="bob")
    ask(mesh, PreemptTask(task_id="t", request_id="evict"))
    saved = ask(mesh, GetSavedState(task_id="t"), bob).state
    assert saved is not None
    assert submit(mesh, "t", ada, owner="ada").refused.reason == "not_allowed"
    assert ask(mesh, GetSavedState(task_id="t"), bob).state == saved


def test_who_had_a_task_with_the_id_of_a_member_has_no_part_in_the_array(mesh, room):
    ada, bob = room
    for task_id in ("a[3]", "a[0-9]"):
        submit(mesh, task_id, bob, owner="bob")
        ask(mesh, CancelTask(task_id=task_id, request_id=f"end {task_id}"), bob)
    submit(mesh, "a[4]", bob, owner="bob")
    ask(mesh, PreemptTask(task_id="a[4]", request_id="evict"))
    ask(mesh, Drain(pool_name="p", drained=True, client="me"))
    made = submission("a", owner="ada")
    members = msgspec.structs.replace(made.task, array="0-9", run="go")
    queued = msgspec.structs.replace(made, task=members, queue=True)
    ask(mesh, SubmitTask(submission=queued, blobs={key_of(CLASS): CLASS}), ada)
    assert len(mesh.running.reactor.state.arrays.by_id["a"].remaining) == 10
    for number, task_id in enumerate(("a[3]", "a[4]", "a[0-9]", "a[3-9]", "a")):
        cancel = CancelTask(task_id=task_id, request_id=f"steal {number}")
        hold = ChangeQueuedTask(task_id=task_id, held=True, request_id=f"hold {number}")
        for request in (cancel, hold, CancelTasks(task_ids=(task_id,)), GetResult(task_id=task_id)):
            assert "not one of 'bob'" in ask(mesh, request, bob).refused.error, task_id


def test_who_had_a_task_that_was_evicted_has_no_part_in_a_later_one_of_its_id(mesh, room):
    ada, bob = room
    submit(mesh, "t", bob, owner="bob")
    ask(mesh, PreemptTask(task_id="t", request_id="evict"))
    submit(mesh, "t", owner="ada")
    ask(mesh, CompleteTask(task_id="t", request_id="complete"), ada)
    assert "t" in mesh.running.reactor.state.preempted
    assert "not one of 'bob'" in ask(mesh, GetResult(task_id="t"), bob).refused.error
    assert not hasattr(ask(mesh, GetResult(task_id="t"), ada), "refused")


def test_a_submitter_changes_tasks_in_its_pools_only(mesh, room):
    ada, _bob = room
    submit(mesh, "t", owner="ada", pool="q")
    for request in (
        CompleteTask(task_id="t", request_id="1"),
        CancelTask(task_id="t", request_id="2"),
        CancelTasks(task_ids=("t",)),
    ):
        assert ask(mesh, request, ada).refused.reason == "not_allowed", request


def test_only_operators_adopt_ray_jobs_of_others(mesh, room):
    wanted = submission("t", owner="ada")
    agent = msgspec.structs.replace(wanted.agent, payload=JobPayload(adopts="01"))
    made = SubmitTask(submission=msgspec.structs.replace(wanted, agent=agent))
    assert "only an operator adopts" in ask(mesh, made, room[0]).refused.error


def test_the_tasks_of_a_submitter_have_the_limits_of_its_token(mesh):
    ask(mesh, EnsurePool(name="p", resources=CPU, labels={}))
    limits = {
        "evict_pools": ("p",),
        "label_values": {"team": ("x", "y"), "tier": ()},
        "least_max_preemptions": 2,
        "max_priority": 3.0,
    }
    ada = issue(mesh, "ada", Role.SUBMITTER, owner="ada", **limits)

    def submitted(name, **task):
        given = submission(name, priority=task.pop("priority", 5.0))
        given = msgspec.structs.replace(given, task=msgspec.structs.replace(given.task, **task))
        return ask(mesh, SubmitTask(submission=given, blobs={key_of(CLASS): CLASS}), ada)

    for number, task in enumerate(
        (
            {"labels": {"team": "z"}},
            {"labels": {"tier": "premium"}},
            {"max_preemptions": 1},
            {"priority": 4.0},
            {"owner": "bob"},
        )
    ):
        assert submitted(f"no{number}", **task).refused.reason == "not_allowed", task
    free = {"labels": {"team": "y", "other": "anything"}, "max_preemptions": 2}
    state = mesh.running.reactor.state

    def spec_of(name):
        return (state.queue.by_id.get(name) or state.running.by_id[name]).spec

    submitted("yes", **free, evict_pools=None)
    task = spec_of("yes")
    assert (task.priority, task.evict_pools, task.labels["other"]) == (3.0, ("p",), "anything")
    # The limits are those of the token as it is now.
    ask(mesh, ChangeToken(name="ada", evict_pools=None, least_max_preemptions=None, client="c"))
    submitted("later", max_preemptions=0)
    assert spec_of("later").evict_pools is None
    row = next(row for row in ask(mesh, ListTokens()).rows if row["name"] == "ada")
    assert (row["evict_pools"], row["label_values"]) == (None, {"team": ["x", "y"], "tier": []})


def test_another_role_has_none_of_the_limits(mesh):
    issue(mesh, "ada", Role.SUBMITTER, owner="ada", evict_pools=(), least_max_preemptions=1)
    ask(mesh, ChangeToken(name="ada", role=Role.VIEWER, client="c"))
    token = mesh.running.reactor.state.tokens["ada"]
    assert (token.evict_pools, token.label_values, token.least_max_preemptions) == (None, {}, None)
    changed = ask(mesh, ChangeToken(name="ada", evict_pools=("p",), client="c"))
    assert changed.outcome.reason == "token_contradiction"

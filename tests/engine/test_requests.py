"""A request that is repeated gets its first outcome, and the repetition changes nothing."""

from __future__ import annotations

import tracemalloc

import msgspec
import pytest

from schedulemesh.config.policy import PreemptionPolicy
from schedulemesh.config.queueing import QueuePolicy
from schedulemesh.domain.cohort import CohortSpec
from schedulemesh.domain.reasons import Reason
from schedulemesh.domain.request_ids import (
    bound_id,
    key_of_content,
    keyed,
    owner_of,
    portion_id,
)
from schedulemesh.domain.resources import NOTHING
from schedulemesh.domain.task import TaskSpec
from schedulemesh.domain.tokens import Role, TokenSpec
from schedulemesh.domain.windows import MaintenanceWindow
from schedulemesh.engine.messages import stimuli as s
from schedulemesh.engine.messages.outcomes import (
    Accepted,
    AgentEvicted,
    Done,
    Evicted,
    Pending,
    ProbeNeeded,
    Queued,
    Refused,
    TasksCancelled,
)
from schedulemesh.engine.messages.stimulus import RequestStimulus
from schedulemesh.engine.state import request_updates
from schedulemesh.engine.state.agents import RememberedAnswer
from schedulemesh.engine.state.request_updates import RememberedOutcomes
from tests.engine.builders import Mesh, node, pool


def mesh_of(**more):
    """Room for four tasks of one CPU, two of which run."""
    mesh = Mesh(pool("p", cpu=4), nodes=[node("a", cpu=4)], **more)
    mesh.run("t", cpu=1)
    mesh.run("u", cpu=1)
    return mesh


def with_a_lost_agent():
    mesh = mesh_of()
    mesh.run("x", cpu=1, class_key="c")
    mesh.die("x")
    return mesh


def with_a_second_task():
    mesh = mesh_of()
    mesh.announce("second", "t")
    return mesh


def with_a_waiting_task():
    mesh = mesh_of()
    mesh.queue("w", cpu=4)
    return mesh


def submission(name="new", **how):
    return Mesh().submission(name, more={"request_id": "r"}, **how)


def queued(**how):
    return Mesh().submission("new", more={"request_id": "r", "queue": True}, **how)


def finished(task_id, **how):
    return s.TaskFinished(task_id=task_id, request_id="r", **how)


def preempted(**how):
    return s.PreemptionRequested(request_id="r", **how)


def rebuilt(name):
    return s.RebuildRequested(agent_name=name, request_id="r")


def start(mesh):
    (name,) = mesh.starts
    mesh.report(name)


def end(mesh):
    (name,) = mesh.ends
    mesh.leave(name)


def cancel(mesh):
    (task_id,) = mesh.task_evictions
    mesh.handle(s.CancelAnswered(task_id=task_id, cancel_success=True))


WINDOW = MaintenanceWindow(name="w", start=2000.0, duration_s=60.0, node_ids=("a",))
TOKEN = TokenSpec(name="k", role=Role.VIEWER, secret_hash="a" * 64)


def policy_change(request_id="r", **changes):
    changes = changes or {"min_runtime": 60.0}
    return s.PolicyChangeRequested(
        policy=PreemptionPolicy(**changes),
        client="c",
        changes=tuple(changes),
        request_id=request_id,
    )


#: Every kind of request, once with each way in which it is answered: immediately, or after it was pending.
IMMEDIATE = [
    (mesh_of, submission(cpu=9), Refused),
    (mesh_of, submission("t", cpu=1), Refused),
    (mesh_of, finished("t"), Done),
    (with_a_second_task, finished("t", end_agent=True), Done),
    (mesh_of, finished("unknown"), Refused),
    (mesh_of, preempted(task_id="unknown"), Refused),
    (mesh_of, preempted(agent_name="unknown", end_agent=True), Refused),
    (mesh_of, rebuilt("t"), Refused),
    (mesh_of, queued(cpu=1), Queued),
    (mesh_of, queued(cpu=4), Queued),
    (mesh_of, queued(cpu=9), Refused),
    (with_a_waiting_task, s.QueuedTaskChanged(task_id="w", held=True, request_id="r"), Done),
    (mesh_of, s.QueuedTaskChanged(task_id="w", held=True, request_id="r"), Refused),
    (mesh_of, s.TimeLimitRequested(task_id="t", max_run_s=60.0, request_id="r"), Done),
    (mesh_of, s.TimeLimitRequested(task_id="unknown", request_id="r"), Refused),
    (with_a_waiting_task, s.TaskCancellationRequested(task_id="w", request_id="r"), Done),
    (mesh_of, s.TaskCancellationRequested(task_id="w", request_id="r"), Refused),
    (mesh_of, s.TasksCancellationRequested(task_ids=("t", "w"), request_id="r"), TasksCancelled),
    (mesh_of, s.AgentDeletionRequested(agent_name="unknown", request_id="r"), Refused),
    (mesh_of, s.PoolRequested(spec=pool("new", cpu=1), request_id="r"), Done),
    (mesh_of, s.CohortRequested(spec=CohortSpec(name="c"), request_id="r"), Done),
    (mesh_of, s.PoolDeletionRequested(pool_name="p", request_id="r"), Refused),
    (mesh_of, s.PoolDeletionRequested(pool_name="p", drain=True, request_id="r"), Done),
    (mesh_of, s.PoolRenameRequested(pool_name="unknown", new_name="n", request_id="r"), Refused),
    (mesh_of, s.CohortDeletionRequested(name="unknown", request_id="r"), Refused),
    (mesh_of, s.CohortRenameRequested(name="unknown", new_name="n", request_id="r"), Refused),
    (mesh_of, policy_change(), Done),
    (
        mesh_of,
        s.QueuePolicyChangeRequested(
            policy=QueuePolicy(ageing_per_hour=2.0),
            client="c",
            changes=("ageing_per_hour",),
            request_id="r",
        ),
        Done,
    ),
    (
        mesh_of,
        s.StateHandlersGiven(pool_name="p", preserver_key="k", restorer_key=None, request_id="r"),
        Done,
    ),
    (mesh_of, s.CordonRequested(node_id="a", cordoned=True, request_id="r"), Done),
    (mesh_of, s.DrainRequested(node_id="a", drained=True, client="c", request_id="r"), Done),
    (mesh_of, s.DrainRequested(node_id="unknown", client="c", request_id="r"), Refused),
    (mesh_of, s.TaskAnnounced(task=TaskSpec(task_id="v"), agent_name="t", request_id="r"), Done),
    (mesh_of, s.TokenRequested(spec=TOKEN, client="c", request_id="r"), Done),
    (mesh_of, s.TokenChangeRequested(name="unknown", client="c", request_id="r"), Refused),
    (mesh_of, s.TokenRevocationRequested(name="unknown", client="c", request_id="r"), Refused),
    (mesh_of, s.WindowRequested(window=WINDOW, request_id="r"), Done),
    (mesh_of, s.WindowDeletionRequested(name="unknown", request_id="r"), Refused),
]
LATER = [
    (mesh_of, submission(cpu=1), start, Accepted),
    (mesh_of, submission(cpu=1), lambda mesh: mesh.fail("new"), Refused),
    (mesh_of, submission(cpu=1), lambda mesh: (mesh.delete("new"), end(mesh)), Refused),
    (mesh_of, finished("t", end_agent=True), end, Done),
    (mesh_of, s.AgentDeletionRequested(agent_name="t", request_id="r"), end, Done),
    (mesh_of, preempted(task_id="t"), cancel, Evicted),
    (mesh_of, preempted(agent_name="t", end_agent=True), end, AgentEvicted),
    (with_a_lost_agent, rebuilt("x"), start, Accepted),
]


def test_every_kind_of_request_is_covered():
    kinds = {type(case[1]) for case in (*IMMEDIATE, *LATER)}
    assert kinds == set(s.AnyRequest.__args__) == set(RequestStimulus.__subclasses__())


@pytest.mark.parametrize(("made", "request_", "kind"), IMMEDIATE)
def test_a_final_outcome_is_given_again(made, request_, kind):
    mesh = made()
    first = mesh.handle(request_)
    assert isinstance(first.outcome, kind)
    assert mesh.state.answers["r"].outcome == first.outcome
    assert repeated(mesh, request_) == first.outcome
    # What would decide otherwise now changes nothing either.
    mesh.announce("unknown", "unknown")
    mesh.resize(pool("p", cpu=20))
    assert repeated(mesh, request_) == first.outcome


@pytest.mark.parametrize(("made", "request_", "happens", "kind"), LATER)
def test_a_pending_request_stays_pending_and_its_final_outcome_is_given_again(
    made, request_, happens, kind
):
    mesh = made()
    first = mesh.handle(request_).outcome
    assert isinstance(first, Pending)
    assert repeated(mesh, request_) == first
    happens(mesh)
    final = mesh.state.answers["r"].outcome
    assert isinstance(final, kind)
    assert mesh.told == ["r"]
    assert repeated(mesh, request_) == final


def test_a_request_without_an_id_is_decided_each_time():
    mesh = mesh_of()
    assert isinstance(mesh.submit("x", cpu=1), Pending)
    assert mesh.submit("x", cpu=1).reason == "duplicate_task"
    assert not mesh.state.answers


def test_a_dry_run_and_a_probe_are_not_remembered():
    mesh = mesh_of()
    mesh.run("low", priority=0.0, cpu=2)
    dry = s.TaskSubmitted(agent=submission(cpu=9).agent, request_id="r", dry_run=True)
    assert mesh.handle(dry).facts == ()
    probed = submission(cpu=2, priority=9.0, class_key="unseen")
    assert isinstance(mesh.handle(probed).outcome, ProbeNeeded)
    assert not mesh.state.answers
    mesh.handle(s.ClassProbed(class_key="unseen"))
    assert isinstance(mesh.handle(probed).outcome, Pending)


def repeated(mesh, request_):
    """The outcome of a repetition, which changes nothing."""
    step = mesh.handle(request_)
    assert step.facts == ()
    assert step.instructions == ()
    return step.outcome


def test_a_repeated_deletion_does_not_end_another_agent_of_the_name():
    mesh = mesh_of()
    first = s.AgentDeletionRequested(agent_name="t", request_id="first")
    late = s.AgentDeletionRequested(agent_name="t", request_id="late")
    mesh.handle(first)
    # While the agent ends, another client deletes it, too.
    assert mesh.handle(late).outcome == Pending(agent_name="t")
    end(mesh)
    mesh.run("t", cpu=1)
    for deletion in (first, late):
        assert repeated(mesh, deletion) == Done()
    assert "t" in mesh.state.agents


def test_a_repeated_change_does_not_undo_a_later_one():
    mesh = mesh_of()
    first, second = policy_change(min_runtime=1.0), policy_change("s", min_runtime=2.0)
    mesh.handle(first)
    mesh.handle(second)
    repeated(mesh, first)
    assert mesh.state.policy.min_runtime == 2.0
    mesh.handle(s.TokenRequested(spec=TOKEN, client="c", request_id="made"))
    revocation = s.TokenRevocationRequested(name="k", client="c", request_id="revoked")
    mesh.handle(revocation)
    mesh.handle(s.TokenRequested(spec=TOKEN, client="c", request_id="again"))
    repeated(mesh, revocation)
    assert "k" in mesh.state.tokens


def test_a_key_with_another_content_is_refused_and_stays_with_its_first_request():
    mesh = mesh_of()

    def id_of(content, token="ada"):
        return bound_id(token, keyed(("POST", "/x", "key"), content))

    first = finished("t")
    first = msgspec.structs.replace(first, request_id=id_of(b"t"))
    other = s.TaskFinished(task_id="u", request_id=id_of(b"u"))
    done = mesh.handle(first).outcome
    for _ in range(2):
        assert repeated(mesh, other).reason == "request_id_reused"
    assert repeated(mesh, first) == done
    # Another token has keys of its own.
    mesh.handle(s.TaskFinished(task_id="u", request_id=id_of(b"u", "bob")))
    assert not mesh.state.running.by_id
    # One that is not decided yet has its key, too.
    pending = Mesh().submission(
        "new", cpu=1, more={"request_id": bound_id("a", keyed(("k",), b"1"))}
    )
    assert isinstance(mesh.handle(pending).outcome, Pending)
    clash = Mesh().submission("x", cpu=1, more={"request_id": bound_id("a", keyed(("k",), b"2"))})
    assert repeated(mesh, clash).reason == "request_id_reused"


def test_ids_of_requests_with_a_token():
    given = keyed(("a", "b"), b"body")
    bound = bound_id("ada", given)
    assert (
        owner_of(bound) == owner_of(bound_id("ada", "anything")) != owner_of(bound_id("bob", given))
    )
    assert key_of_content(bound) == key_of_content(bound_id("ada", keyed(("a", "b"), b"other")))
    assert bound.startswith(key_of_content(bound))
    assert (owner_of("anything"), key_of_content("anything")) == ("", "")
    assert key_of_content(bound_id("ada", "anything")) == ""
    portions = [portion_id(bound, number) for number in range(3)]
    assert len(set(portions)) == 3
    assert portions[0] == bound
    assert {owner_of(portion) for portion in portions} == {owner_of(bound)}
    assert portion_id("plain", 0) == "plain" != portion_id("plain", 1)


class TestBounds:
    """How many outcomes are remembered."""

    def remember(self, answers, token, number, error=""):
        answers.note(
            bound_id(token, str(number)),
            float(number),
            Refused(reason=Reason.POOL_IN_USE, error_text=error),
        )

    def numbers(self, answers):
        return [int(answer.at) for answer in answers.values()]

    @pytest.mark.parametrize("limit", ["KEPT_OF_TOKEN", "BYTES_OF_TOKEN"])
    def test_one_token_pushes_out_its_own_oldest_only(self, monkeypatch, limit):
        answers = RememberedOutcomes()
        self.remember(answers, "other", 0)
        size = len(answers[next(iter(answers))].packed)
        monkeypatch.setattr(request_updates, limit, 3 if limit == "KEPT_OF_TOKEN" else 3 * size)
        for number in range(1, 10):
            self.remember(answers, "storm", number)
        assert self.numbers(answers) == [0, 7, 8, 9]

    @pytest.mark.parametrize("limit", ["KEPT", "KEPT_BYTES"])
    def test_of_all_tokens_the_one_with_most_gives_way(self, monkeypatch, limit):
        answers = RememberedOutcomes()
        self.remember(answers, "other", 0)
        size = len(answers[next(iter(answers))].packed)
        monkeypatch.setattr(request_updates, limit, 3 if limit == "KEPT" else 3 * size)
        for number in range(1, 10):
            self.remember(answers, "storm", number)
        assert self.numbers(answers) == [0, 8, 9]
        for request_id in list(answers):
            answers.forget(request_id)
        assert vars(answers) == vars(RememberedOutcomes())

    @pytest.mark.parametrize(("numbers", "size"), [(50_010, 0), (200, 100_000)])
    def test_of_each_token_50_000_answers_are_remembered_in_16_mib(self, numbers, size):
        answers = RememberedOutcomes()
        self.remember(answers, "other", 0)
        for number in range(1, numbers + 1):
            self.remember(answers, "storm", number, "x" * size)
        kept = min(50_000, 16 * 2**20 // self.bytes_of_one(answers))
        assert self.numbers(answers) == [0, *range(numbers - kept + 1, numbers + 1)]
        self.assert_restored(answers)

    @pytest.mark.parametrize(("numbers", "size"), [(200_008, 0), (1_000, 100_000)])
    def test_of_all_tokens_200_000_answers_are_remembered_in_64_mib(self, numbers, size):
        answers = RememberedOutcomes()
        for number in range(numbers):
            self.remember(answers, f"token-{number % 8}", number, "x" * size)
        kept = min(200_000, 64 * 2**20 // self.bytes_of_one(answers))
        assert len(answers) == kept
        by_token = [[n for n in self.numbers(answers) if n % 8 == token] for token in range(8)]
        for token, newest in enumerate(by_token):
            assert newest == list(range(numbers - 8 * len(newest) + token, numbers, 8))
            assert len(newest) in (kept // 8, kept // 8 + 1)
        self.assert_restored(answers)

    def bytes_of_one(self, answers):
        """The bytes of the newest."""
        return len(answers[next(reversed(answers))].packed)

    def assert_restored(self, answers):
        """A supervisor that takes over remembers the same, within the same bounds."""
        restored = RememberedOutcomes()
        restored.restore(
            (request_id, RememberedAnswer(at=each.at, outcome=each.outcome))
            for request_id, each in answers.items()
        )
        assert list(restored.items()) == list(answers.items())
        assert vars(restored) == vars(answers)

    def test_a_large_outcome_leaves_room_for_itself(self, monkeypatch):
        monkeypatch.setattr(request_updates, "BYTES_OF_TOKEN", 100)
        answers = RememberedOutcomes()
        self.remember(answers, "t", 1)
        self.remember(answers, "t", 2, "x" * 1_000)
        assert self.numbers(answers) == [2]

    def test_a_remembered_outcome_takes_little_memory(self):
        answers = RememberedOutcomes()
        outcome = Accepted(
            task_id="task",
            agent_name="agent",
            pool_name="p",
            incarnation=1,
            node_id="n" * 56,
            resources=NOTHING,
        )
        tracemalloc.start()
        for number in range(10_000):
            answers.note(bound_id("t", str(number)), float(number), outcome)
        size, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert size / 10_000 < 1_000


def test_a_completion_that_is_repeated_is_no_unknown_task():
    mesh = mesh_of()
    mesh.delete("t")
    assert isinstance(mesh.handle(finished("t", end_agent=True)).outcome, Pending)
    assert repeated(mesh, finished("t", end_agent=True)) == Done()
    mesh.leave("t")
    assert repeated(mesh, finished("t", end_agent=True)) == Done()


@pytest.mark.parametrize("ends_already", [True, False])
def test_a_cancellation_that_is_repeated_does_not_cancel_a_later_task_of_the_id(ends_already):
    mesh = mesh_of()
    if ends_already:
        mesh.delete("t")
    cancellation = s.TaskCancellationRequested(task_id="t", request_id="r")
    assert isinstance(mesh.handle(cancellation).outcome, Pending)
    mesh.leave("t")
    mesh.run("t", cpu=1)
    assert repeated(mesh, cancellation) == Done()
    assert "t" in mesh.state.running.by_id

"""A pool operator does everything in its pools, and nothing elsewhere: each call, aimed at either."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from schedulemesh.api.agents import DeleteAgent
from schedulemesh.api.audit import QueryAudit
from schedulemesh.api.calls import CALLS
from schedulemesh.api.exec_sessions import ReadExec, StartExec, WriteExec
from schedulemesh.api.leases import ReleaseLease, RenewLease, SaveLease, WatchLease
from schedulemesh.api.logs import ReadTaskLog
from schedulemesh.api.nodes import CordonNode, Drain
from schedulemesh.api.policies import ChangePolicy
from schedulemesh.api.pools import (
    CreatePool,
    DeletePool,
    EnsureCohort,
    EnsurePool,
    ListPools,
    RenamePool,
    ResizePool,
)
from schedulemesh.api.preemption import ExecutePreemption, PreemptTask
from schedulemesh.api.queue import ChangeQueuedTask
from schedulemesh.api.states import (
    GetSavedState,
    RegisterStateHandlers,
    RestoreTask,
    SaveTaskState,
)
from schedulemesh.api.tasks import (
    CancelTask,
    CancelTasks,
    CompleteTask,
    GetResult,
    RegisterTask,
    SetTimeLimit,
    SubmitMany,
    SubmitTask,
)
from schedulemesh.api.tokens import CreateToken, ListTokens
from schedulemesh.domain.owner_limits import parse_owner_limits
from schedulemesh.domain.payloads import JobPayload
from schedulemesh.domain.pool import PoolSpec
from schedulemesh.domain.saved_state import SavedState
from schedulemesh.domain.task import TaskSpec
from schedulemesh.domain.tokens import Role, TokenSpec, contradiction
from schedulemesh.protocol.agents import key_of
from tests.runtime.composition import InThread
from tests.runtime.test_authentication import AUTH, ask, issue
from tests.server.work import CLASS, CPU, submission


def adoption(task_id, pool):
    """The submission that makes a task of a Ray job."""
    made = submission(task_id, pool=pool)
    return replace(made, agent=replace(made.agent, payload=JobPayload(adopts="05000000")))


#: What an operator of pools may ask for, aimed at a pool and a task in it.
OF_POOLS = {
    CancelTask: lambda pool, task: CancelTask(task_id=task, request_id="CancelTask"),
    CancelTasks: lambda pool, task: CancelTasks(task_ids=("none", task)),
    ChangeQueuedTask: lambda pool, task: ChangeQueuedTask(
        task_id=task, to_front=True, request_id="ChangeQueuedTask"
    ),
    CompleteTask: lambda pool, task: CompleteTask(task_id=task, request_id="CompleteTask"),
    DeleteAgent: lambda pool, task: DeleteAgent(agent_name=f"{task}-agent"),
    Drain: lambda pool, task: Drain(pool_name=pool, drained=True, client="c"),
    EnsurePool: lambda pool, task: EnsurePool(name=pool, queueing="strict"),
    ExecutePreemption: lambda pool, task: ExecutePreemption(
        task_id=task, agent_name=f"{task}-agent", request_id="e"
    ),
    GetResult: lambda pool, task: GetResult(task_id=task),
    GetSavedState: lambda pool, task: GetSavedState(task_id=task),
    PreemptTask: lambda pool, task: PreemptTask(
        task_id=task, agent_name=None, for_pool=None, client="c", request_id="p"
    ),
    ReadExec: lambda pool, task: ReadExec(task_id=task, session_id="none"),
    ReadTaskLog: lambda pool, task: ReadTaskLog(task_id=task),
    RegisterStateHandlers: lambda pool, task: RegisterStateHandlers(pool_name=pool),
    RegisterTask: lambda pool, task: RegisterTask(
        task=TaskSpec(task_id="new", pool_name=pool), agent_name=f"{task}-agent"
    ),
    ReleaseLease: lambda pool, task: ReleaseLease(task_id=task, request_id="l"),
    RenewLease: lambda pool, task: RenewLease(task_id=task),
    ResizePool: lambda pool, task: ResizePool(
        name=pool, owner_limits=parse_owner_limits({"ada": {"cpu": 1}}), owner_order="fair"
    ),
    RestoreTask: lambda pool, task: RestoreTask(
        saved=SavedState(
            task=TaskSpec(task_id=task, pool_name=pool), agent_name="", source="given", saved_at=0.0
        ),
        client="c",
        request_id="r",
    ),
    SaveLease: lambda pool, task: SaveLease(task_id=task, request_id="s"),
    SaveTaskState: lambda pool, task: SaveTaskState(task_id=task),
    SetTimeLimit: lambda pool, task: SetTimeLimit(task_id=task, max_run_s=9.0, request_id="t"),
    StartExec: lambda pool, task: StartExec(task_id=task, command=("true",), request_id="x"),
    SubmitMany: lambda pool, task: SubmitMany(submissions=(submission("other", pool=pool),)),
    SubmitTask: lambda pool, task: SubmitTask(
        submission=submission("another", pool=pool), blobs={key_of(CLASS): CLASS}
    ),
    WatchLease: lambda pool, task: WatchLease(task_id=task),
    WriteExec: lambda pool, task: WriteExec(task_id=task, session_id="none"),
}
#: What is beyond its pools, although it names one of them.
BEYOND = [
    ResizePool(name="p", resources=CPU),
    ResizePool(name="p", labels={}),
    ResizePool(name="p", lending={"cohort": "c"}),
    ResizePool(name="p", pg_pool_config=None),
    ResizePool(name="p", target_agents=2),
    EnsurePool(name="new", queueing="strict"),
    CreatePool(spec=PoolSpec(name="new")),
    DeletePool(name="p", client="c"),
    RenamePool(name="p", new_name="r"),
    EnsureCohort(name="c"),
    Drain(node_id="n", drained=True, client="c"),
    CordonNode(node_id="n", cordoned=True),
    ChangePolicy(changes={}, client="c"),
    CreateToken(
        spec=TokenSpec(name="x", role=Role.VIEWER, secret_hash="c" * 64), client="c", request_id="c"
    ),
    ListTokens(),
    QueryAudit(),
    PreemptTask(task_id="in-p", agent_name=None, for_pool="q", client="c", request_id="b"),
    ChangeQueuedTask(task_id="in-p", priority=7.0, request_id="ChangeQueuedTask"),
    SubmitTask(submission=submission("new", pool="p", priority=7.0)),
    SubmitTask(submission=submission("in-q", pool="p")),
    SubmitTask(submission=submission("new", pool="")),
    SubmitTask(submission=adoption("adopted", pool="p")),
]


@pytest.fixture(scope="module")
def mesh(tmp_path_factory):
    """A supervisor with pools p and q, and a task in each."""
    running = InThread(tmp_path_factory.mktemp("lead") / "j.sqlite", auth=AUTH)
    for pool in ("p", "q"):
        ask(running, EnsurePool(name=pool, resources=CPU, labels={}))
        made = submission(f"in-{pool}", pool=pool, owner="ada")
        ask(running, SubmitTask(submission=made, blobs={key_of(CLASS): CLASS}))
    yield running
    running.close()


@pytest.fixture(scope="module")
def lead(mesh):
    """The token of the operator of pool p."""
    return issue(mesh, "lead", Role.POOL_OPERATOR, pools=("p",), max_priority=6.0)


def refusal_of(mesh, request, token):
    """Why a request is not allowed; None: it is."""
    refused = getattr(ask(mesh, request, token), "refused", None)
    return refused.error if refused is not None and refused.reason == "not_allowed" else None


def test_the_table_has_every_call_that_such_a_role_may_make():
    roles = (Role.SUBMITTER, Role.POOL_OPERATOR)
    assert set(OF_POOLS) == {call for call in CALLS if call.least_role in roles}


@pytest.mark.parametrize("call", OF_POOLS, ids=lambda call: call.__name__)
def test_no_call_reaches_another_pool(mesh, lead, call):
    error = refusal_of(mesh, OF_POOLS[call]("q", "in-q"), lead)
    assert error is not None
    assert "pool p" in error


@pytest.mark.parametrize("request_", BEYOND, ids=lambda one: type(one).__name__)
def test_what_concerns_others_is_for_operators(mesh, lead, request_):
    assert refusal_of(mesh, request_, lead) is not None


#: Those that end what others need, last.
@pytest.mark.parametrize(
    "call",
    sorted(OF_POOLS, key=lambda c: (c in (CancelTask, CancelTasks, DeleteAgent), c.__name__)),
    ids=lambda call: call.__name__,
)
def test_every_call_reaches_its_own_pool(mesh, lead, call):
    assert refusal_of(mesh, OF_POOLS[call]("p", "in-p"), lead) is None


def test_it_sees_everything(mesh, lead):
    assert refusal_of(mesh, ListPools(), lead) is None


def test_its_tasks_evict_in_its_pools_only(mesh, lead):
    state = mesh.running.reactor.state
    specs = [task.spec for task in state.running.by_id.values()]
    specs += [task.spec for task in state.queue.by_id.values()]
    assert {s.evict_pools for s in specs if s.task_id in ("other", "another")} <= {("p",)}


def test_a_renamed_pool_stays_its_own(mesh, lead):
    ask(mesh, RenamePool(name="p", new_name="renamed"))
    assert refusal_of(mesh, Drain(pool_name="renamed", drained=False, client="c"), lead) is None
    assert refusal_of(mesh, GetResult(task_id="in-p"), lead) is None
    assert refusal_of(mesh, Drain(pool_name="q", drained=False, client="c"), lead) is not None


@pytest.mark.parametrize(
    ("limits", "error"),
    [
        ({}, "needs the pools"),
        ({"pools": ("p",), "owner": "ada"}, "limit submitters"),
        ({"pools": ("p",), "label_values": {"a": ("b",)}}, "limit submitters"),
        ({"pools": ("p",), "evict_pools": (), "max_priority": 1.0}, None),
    ],
)
def test_its_token_names_pools(limits, error):
    spec = TokenSpec(name="t", role=Role.POOL_OPERATOR, secret_hash="c" * 64, **limits)
    told = contradiction(spec)
    assert told is None if error is None else error in told

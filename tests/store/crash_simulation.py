"""Simulates a supervisor that crashes between journal writes: engine, journal, and a virtual executor.

Agent processes, and the methods that they run, survive the crashes, as in Ray. Everything that was
acknowledged to a caller, and every fact that became durable, is recorded outside of the simulated supervisor.
"""

from __future__ import annotations

import random
from collections import Counter

import msgspec

from schedulemesh.config.policy import PreemptionPolicy
from schedulemesh.domain.agent import Alternative, MemberProcess, with_alternatives
from schedulemesh.domain.arrays import Indices, parse_indices
from schedulemesh.domain.end_reasons import TaskEndReason
from schedulemesh.domain.node_labels import parse_node_labels
from schedulemesh.domain.payloads import GangPayload
from schedulemesh.domain.reasons import Reason
from schedulemesh.domain.resources import NOTHING
from schedulemesh.engine.codec import encode_facts
from schedulemesh.engine.engine import Engine
from schedulemesh.engine.messages import instructions as i
from schedulemesh.engine.messages import stimuli as s
from schedulemesh.engine.messages.facts import (
    AgentAdmitted,
    AgentEnded,
    RequestAnswered,
    StateSaved,
    TaskEnded,
    TaskPreempted,
    TaskRegistered,
)
from schedulemesh.engine.messages.outcomes import Done, Pending, ProbeNeeded, Refused
from schedulemesh.engine.messages.pool_facts import PoolRenamed
from schedulemesh.engine.messages.queue_facts import (
    ArrayMembersCancelled,
    ArrayMembersSplit,
    TaskCancelled,
    TaskQueued,
)
from schedulemesh.engine.messages.window_facts import WindowEnded
from schedulemesh.engine.state.agents import Running, Starting
from schedulemesh.engine.state.invariants import check
from schedulemesh.engine.state.mesh_state import MeshState
from schedulemesh.engine.state.snapshot import referenced, take_snapshot
from schedulemesh.engine.state.task_phases import Preempting
from schedulemesh.protocol.agents import key_of
from tests.engine.builders import amount, differences, gpu_ids
from tests.store.builders import written
from tests.store.crash_definitions import (
    FALLBACKS,
    NODES,
    OWNERS,
    PRIORITIES,
    SELECTORS,
    random_policy,
    random_pool,
    random_window,
)
from tests.store.crash_use import DAY_S, Use

POOLS = ("p", "q")
#: These, and a name that one of them may get.
NAMES = (*POOLS, "x")
WINDOWS = ("w1", "w2")
#: How close together the members of a gang are to be.
TOPOLOGIES = ("", "rack", "rack", "preferred:rack")
NEEDS = ({"cpu": 1}, {"cpu": 2}, {"cpu": 3}, {"cpu": 1, "gpu": 0.5}, {"gpu": 1}, {"gpu": 1})


class Crash(Exception):
    """The supervisor crashes here."""


def alternative(fallback):
    """What will do instead: nodes with these labels."""
    return Alternative(node_labels=parse_node_labels(fallback, "label_selector"))


def renamed(window, fact):
    """A window, or None for none, once a pool has another name."""
    if window is None or fact.pool_name not in window.pools:
        return window
    return msgspec.structs.replace(window, pools=(fact.new_name,))


class Run:
    """The method of a task, in an agent's process."""

    def __init__(self, task_id):
        self.task_id = task_id
        #: The key of what it returned or raised; None: it runs.
        self.report = None
        self.raised = self.cancelled = False

    def end(self, report, raised, *, cancelled=False):
        self.report, self.raised, self.cancelled = report, raised, cancelled


class CrashSimulation:
    """One random history. ``open_journal`` opens the journal as a new process would."""

    def __init__(self, seed, open_journal, *, snapshot_every=12):
        self.rng = random.Random(seed)
        self._open_journal = open_journal
        self._snapshot_every = snapshot_every
        #: Shortly before the budgets of the day turn.
        self.now = DAY_S - 200.0
        #: The agent processes that exist: (name, incarnation) to resources.
        self.processes = {}
        #: The placement groups that exist, with the nodes of their bundles.
        self.groups = {}
        #: The runs of tasks in these processes, by (name, incarnation).
        self.runs = {}
        #: The processes of whose runs the current supervisor waits for the end.
        self.calls = set()
        #: The bytes of every report of a run, and those that ended a task, by their key.
        self.reports, self.used = {}, set()
        #: By task, the key of the kept result of its last end.
        self.kept = {}
        #: The numbers of tasks that came from the queue and have ended for good.
        self.finished = set()
        #: All that ever became durable, folded.
        self.durable = MeshState()
        #: What was acknowledged to callers: answers by request, and the bytes of saved states.
        self.answered, self.saved = {}, {}
        #: The pools and the policy as last acknowledged, followed by those requested since.
        self.pools, self.policies = {name: [None] for name in NAMES}, []
        #: The same of windows.
        self.windows = {name: [None] for name in WINDOWS}
        #: What budgets are to be charged for, by the durable facts.
        self.use = Use()
        #: Submissions that have not been answered.
        self.waiting = {}
        #: Tasks that wait or run, by the durable facts.
        self.alive = set()
        self.instructions = []
        self.crashes = self.snapshots = 0
        #: How often each kind of fact became durable, and each reason of a refusal.
        self.counts = Counter()
        #: The probability of a crash just before, and just after, a write.
        self.risk = 0.0
        self._fresh = self._numbers = 0
        self.init()

    # -- crashes and recovery -----------------------------------------------------------------------

    def run(self, crashes, risk=0.1):
        """Run until it has crashed this often."""
        for name in POOLS:
            self.make_pool(name)
        self.risk = risk
        while self.crashes < crashes:
            try:
                self.random_action()
            except Crash:
                self.recover()

    def recover(self):
        """Recover, possibly after further crashes; then execute all pending instructions and compare."""
        while True:
            try:
                self.init()
                while self.instructions:
                    self.execute_instruction()
            except Crash:
                continue
            self.compare_with_processes()
            return

    def init(self):
        """Start a new supervisor: its state is what was durable, and includes all that was acknowledged."""
        self.instructions, self.calls = [], set()
        self.journal = self._open_journal()
        epoch = self.journal.begin(take_over=True)
        stored = self.journal.load()
        self._fresh = len(list(stored.facts()))
        state = stored.fold()
        check(state)
        assert differences(state, self.durable) == []
        self.check_acknowledged(state)
        self.engine = Engine(state)
        self.step(s.SupervisorBegan(epoch=epoch))
        self.step(s.ClusterObserved(nodes=NODES))
        claimed = {(name, agent.incarnation) for name, agent in state.agents.items()}
        for orphan in set(self.processes) - claimed:
            self.end_process(*orphan)
        # The supervisor executes nothing before this step, which orders everything again.
        self.instructions = []
        for orphan in self.groups.keys() - state.groups.by_id.keys():
            del self.groups[orphan]
        groups = frozenset(self.groups)
        self.step(s.RecoveryObserved(living=frozenset(self.processes), groups=groups))
        for stimulus in list(self.waiting.values()):
            self.submit_and_wait(stimulus)

    def check_acknowledged(self, state):
        """Nothing acknowledged is missing."""
        for request_id, outcome in self.answered.items():
            assert state.answers[request_id].outcome == outcome
        for name, specs in self.pools.items():
            account = state.ledger.accounts.get(name)
            assert (None if account is None else account.spec) in specs
        assert state.policy in self.policies or not self.policies
        for name, windows in self.windows.items():
            assert state.windows.by_name.get(name) in windows
        self.check_budgets(state)
        assert state.queue.by_id.keys() | state.running.by_id.keys() == self.alive
        kept = referenced(take_snapshot(state))
        for key, data in self.saved.items():
            assert key not in kept or self.journal.blob(key) == data
        for task_id, key in self.kept.items():
            assert state.ended[task_id].result_key == key
            assert self.journal.blob(key) == self.reports[key]

    def check_budgets(self, state):
        """Every budget that is declared has been charged for each process as long as that ran."""
        counted = {
            (name, owner) for name, pool in state.budgets.by_pool.items() for owner in pool.owners
        }
        counted |= {(name, None) for name, pool in state.budgets.by_pool.items() if pool.total}
        assert counted <= self.use.since.keys()
        for name, owner in self.use.since:
            expected = self.use.gpu_s(name, owner, self.now)
            budgets = state.budgets.by_pool[name]
            meter = budgets.total if owner is None else budgets.owners.get(owner)
            used = 0.0 if meter is None else meter.used(budgets.budget(owner), self.now)
            assert abs(used - expected) < 1e-3, (name, owner, used, expected)

    def compare_with_processes(self):
        """With nothing pending, the state matches the agent processes."""
        state = self.engine.state
        check(state)
        running = {
            (name, agent.incarnation)
            for name, agent in state.agents.items()
            if isinstance(agent.phase, Running)
        }
        assert running == set(self.processes)
        assert self.runs.keys() <= running
        assert self.calls == {
            (task.agent_name, state.agents[task.agent_name].incarnation)
            for task in state.running.by_id.values()
            if task.spec.run and not isinstance(task.phase, Preempting)
        }
        assert not {name for name, _ in self.processes} & state.queue.agent_names.keys()
        assert len(state.agents) == len(running)
        used = sum((a.used for a in state.ledger.accounts.values()), NOTHING)
        assert used == sum(self.processes.values(), NOTHING)
        held = sum(
            (share.amount for h in state.ledger.holds.values() for share in h.shares), NOTHING
        )
        assert sum((a.reserved for a in state.ledger.accounts.values()), NOTHING) == held
        assert self.waiting == {}
        assert self.groups.keys() == state.groups.by_id.keys()
        for task in state.running.by_id.values():
            agent = state.agents.get(task.agent_name)
            node_ids = set(self.groups.get(agent and agent.group_id, ()))
            assert task.spec.topology != "rack" or len(node_ids) == 1, "two racks, or no group"

    # -- one step -----------------------------------------------------------------------------------

    def step(self, stimulus, blobs=None):
        """Handle a stimulus as the supervisor does: decide, write, then act and answer."""
        done = self.engine.handle(stimulus, self.now)
        if done.facts:
            self.maybe_crash()
            self.journal.append(encode_facts(done.facts), blobs or {})
            for fact in done.facts:
                self.note_tasks(fact)
                self.use.note(fact)
                self.count(fact)
                self.durable.evolve(fact)
                self.note_window(fact)
                if isinstance(fact, StateSaved):
                    self.saved.update(blobs or {})
            self._fresh += len(done.facts)
            self.maybe_crash()
        for instruction in done.instructions:
            if isinstance(instruction, i.AnswerRequest):
                self.record_answer(
                    instruction.request_id,
                    self.engine.state.answers[instruction.request_id].outcome,
                )
            else:
                self.instructions.append(instruction)
        if self._fresh >= self._snapshot_every:
            self.take_snapshot()
        return done.outcome

    def note_tasks(self, fact):
        """Which tasks have begun and not ended, and what is kept of them, by the facts alone."""
        if isinstance(fact, TaskQueued):
            task_id = fact.submission.task.task_id
            assert (fact.number, task_id) not in self.finished, "a task that has ended waits again"
            self.begin_task(task_id)
            if fact.submission.task.array:
                former = [one for one in self.kept if one.startswith(f"{task_id}[")]
                self.kept = {t: key for t, key in self.kept.items() if t not in former}
        elif isinstance(fact, ArrayMembersSplit):
            for index in fact.indices:
                self.begin_task(f"{fact.array_id}[{index}]")
            self.note_entry(fact.array_id, Indices((i, i) for i in fact.indices))
        elif isinstance(fact, ArrayMembersCancelled):
            remaining = self.durable.arrays.by_id[fact.array_id].remaining
            cancelled = parse_indices(fact.indices) if fact.indices else remaining
            self.note_entry(fact.array_id, cancelled)
        elif isinstance(fact, AgentAdmitted | TaskRegistered) and fact.task is not None:
            self.begin_task(fact.task.task_id)
        elif isinstance(fact, TaskCancelled):
            self.finished.add((self.durable.queue.by_id[fact.task_id].number, fact.task_id))
            self.alive.remove(fact.task_id)
        elif isinstance(fact, TaskEnded):
            self.finished.add((self.durable.running.by_id[fact.task_id].number, fact.task_id))
            self.alive.remove(fact.task_id)
            self.note_result(fact)
        elif isinstance(fact, TaskPreempted):
            self.alive.remove(fact.task.task_id)
        elif isinstance(fact, AgentEnded):
            self.alive -= set(self.durable.running.on_agent(fact.agent_name))

    def count(self, fact):
        self.counts[type(fact)] += 1
        if isinstance(fact, RequestAnswered) and isinstance(fact.outcome, Refused):
            self.counts[fact.outcome.reason] += 1
        if isinstance(fact, AgentAdmitted) and fact.agent.taken_flavor:
            self.counts["flavor"] += 1

    def note_window(self, fact):
        """A window that is over ends by itself, and one for a pool that is renamed names it as before."""
        if isinstance(fact, WindowEnded) and not fact.client:
            self.windows[fact.name].append(None)
        elif isinstance(fact, PoolRenamed):
            for name, windows in self.windows.items():
                self.windows[name] = [renamed(window, fact) for window in windows]

    def note_entry(self, array_id, indices):
        """The entry of an array is gone with the last member that was no task."""
        if not self.durable.arrays.by_id[array_id].remaining.without(indices):
            self.alive.remove(array_id)

    def begin_task(self, task_id):
        self.alive.add(task_id)
        self.kept.pop(task_id, None)

    def note_result(self, fact):
        """A task has ended, if by itself then with the result of a run that ended no other task."""
        if fact.result_key is None:
            return
        assert self.reports[fact.result_key].startswith(f"{fact.task_id} ".encode())
        assert fact.result_key not in self.used, "a run has ended two tasks"
        self.used.add(fact.result_key)
        self.kept[fact.task_id] = fact.result_key

    def take_snapshot(self):
        state = self.engine.state
        self.maybe_crash()
        self.journal.compact(written(state, 3), self.journal.last, referenced(take_snapshot(state)))
        self._fresh = 0
        self.snapshots += 1
        self.maybe_crash()

    def maybe_crash(self):
        if self.rng.random() < self.risk:
            self.crashes += 1
            raise Crash

    def record_answer(self, request_id, outcome):
        self.waiting.pop(request_id, None)
        first = self.answered.setdefault(request_id, outcome)
        assert first == outcome, "a repeated request got a different answer"

    # -- the executor ----------------------------------------------------------------------------------

    def execute_instruction(self):
        """Execute a random pending instruction; the processes change before the supervisor is told."""
        instruction = self.instructions.pop(self.rng.randrange(len(self.instructions)))
        if isinstance(instruction, i.StartAgent):
            self.start(instruction)
        elif isinstance(instruction, i.ProbeClass):
            self.step(s.ClassProbed(class_key=instruction.class_key))
        elif isinstance(instruction, i.RunTask):
            self.run_task(instruction)
        elif isinstance(instruction, i.CreateGroup):
            self.groups[instruction.group_id] = instruction.node_ids
            self.maybe_crash()
            self.step(s.GroupCreated(group_id=instruction.group_id))
        elif isinstance(instruction, i.RemoveGroup):
            self.groups.pop(instruction.group_id, None)
            self.maybe_crash()
            self.step(s.GroupGone(group_id=instruction.group_id))
        elif isinstance(instruction, i.EvictTask):
            self.save(instruction.task_id)
            self.cancel_run(instruction.task_id)
            self.step(s.CancelAnswered(task_id=instruction.task_id, cancel_success=True))
        else:
            for task_id in getattr(instruction, "task_ids", ()):
                self.save(task_id)
                self.cancel_run(task_id)
            self.end_process(instruction.agent_name, instruction.incarnation)
            self.agent_gone(instruction.agent_name, instruction.incarnation)

    def end_process(self, name, incarnation):
        """The process is terminated, or dies; what it runs ends with it."""
        self.processes.pop((name, incarnation), None)
        self.runs.pop((name, incarnation), None)
        self.calls.discard((name, incarnation))

    # -- tasks that run by themselves --------------------------------------------------------------------

    def run_task(self, instruction):
        """A process calls the method once, however often it is asked, and keeps its report."""
        at = instruction.agent_name, instruction.incarnation
        if at not in self.processes:
            return
        run = self.runs.setdefault(at, Run(instruction.task_id))
        assert run.task_id == instruction.task_id, "the process runs another task"
        self.calls.add(at)
        if run.report is not None:
            self.report_run(at)

    def end_run(self):
        """A method returns or raises; the supervisor may learn of it before or after its next crash."""
        going = sorted(at for at, run in self.runs.items() if run.report is None)
        if going:
            at = self.rng.choice(going)
            self.runs[at].end(self.new_report(self.runs[at].task_id), self.rng.random() < 0.4)
            self.maybe_crash()
            self.report_run(at)

    def cancel_run(self, task_id):
        """A method is cancelled for an eviction, and may return early."""
        task = self.engine.state.running.by_id.get(task_id)
        agent = None if task is None else self.engine.state.agents.get(task.agent_name)
        at = None if agent is None else (task.agent_name, agent.incarnation)
        run = self.runs.get(at)
        ends = run is not None and run.task_id == task_id and run.report is None
        if ends and self.rng.random() < 0.5:
            run.end(self.new_report(task_id), raised=False, cancelled=self.rng.random() < 0.7)
            self.report_run(at)

    def new_report(self, task_id):
        self._numbers += 1
        data = f"{task_id} returned {self._numbers}".encode()
        self.reports[key_of(data)] = data
        return key_of(data)

    def report_run(self, at):
        """The supervisor gets the report, if it waits for it."""
        if at not in self.calls:
            return
        self.calls.remove(at)
        run = self.runs[at]
        self.step(
            s.RunEnded(
                task_id=run.task_id,
                agent_name=at[0],
                incarnation=at[1],
                result_key=run.report,
                reason=TaskEndReason.RUN_RAISED if run.raised else None,
                error="it raised" if run.raised else "",
                cancelled=run.cancelled,
            ),
            {run.report: self.reports[run.report]},
        )

    def start(self, instruction):
        agent = self.engine.state.agents.get(instruction.agent.name)
        if agent is None or agent.incarnation != instruction.incarnation:
            return
        key = (instruction.agent.name, instruction.incarnation)
        if not instruction.adopt:
            assert instruction.agent.name not in {name for name, _ in self.processes}, (
                "the agent would run twice"
            )
            if self.rng.random() < 0.15:
                self.step(
                    s.AgentStartFailed(
                        agent_name=instruction.agent.name,
                        incarnation=instruction.incarnation,
                        reason=Reason.AGENT_START_FAILED,
                        error="the class raised",
                    )
                )
                return
            self.processes[key] = instruction.agent.quota
        if not isinstance(agent.phase, Starting):
            return
        group = self.groups.get(agent.group_id, ())
        allocation = None
        if instruction.node_id is not None:
            found = self.engine.state.cluster.nodes.get(instruction.node_id)
            allocation = None if found is None else found.allocations.get(instruction.agent.name)
        self.step(
            s.AgentReported(
                agent_name=instruction.agent.name,
                incarnation=instruction.incarnation,
                node_id=instruction.node_id,
                members=tuple(MemberProcess(node_id=node_id) for node_id in group),
                **({} if allocation is None else {"gpu_ids": gpu_ids(allocation.devices)}),
            )
        )

    def save(self, task_id):
        if task_id not in self.engine.state.running.by_id:
            return
        self._numbers += 1
        data = f"work of {task_id}, {self._numbers}".encode()
        key = key_of(data)
        self.step(
            s.StateStored(task_id=task_id, state_key=key),
            {key: data},
        )

    def agent_gone(self, name, incarnation):
        self.step(s.AgentGone(agent_name=name, incarnation=incarnation))

    # -- the users ----------------------------------------------------------------------------------

    def random_action(self):
        """Do something random: a user's call, an instruction, or the death of an agent."""
        self.now += self.rng.random()
        if self.instructions and self.rng.random() < 0.5:
            self.execute_instruction()
            return
        acts = (self.submit, self.submit, self.submit, self.finish, self.delete, self.preempt)
        acts = (*acts, self.end_run, self.end_run)
        waiting = (self.queue, self.queue, self.queue, self.cancel, self.change_queued, self.limit)
        others = (self.make_pool, self.change_policy, self.register, self.kill_agent, self.tick)
        if self.rng.random() < 0.1:
            ends = (self.end_pool, self.rename_pool, self.change_running)
            self.rng.choice((*ends, self.announce, self.announce, self.delete_window))()
            return
        self.rng.choice((*acts, *waiting, *others))()

    def pick(self, names):
        found = sorted(names)
        return self.rng.choice(found) if found else "nobody"

    def make_pool(self, name=None):
        name = name or self.rng.choice(POOLS)
        spec = random_pool(self.rng, name)
        self.pools[name].append(spec)
        outcome = self.step(s.PoolRequested(spec=spec))
        if isinstance(outcome, Done):
            self.note_pool(name, spec)
        else:
            self.pools[name].pop()

    def note_pool(self, name, spec):
        """This was acknowledged; a pool that is being deleted may have gone by now."""
        ends = name in self.engine.state.drains.ending
        gone = name not in self.engine.state.ledger.accounts
        self.pools[name] = [spec, None] if ends or gone else [spec]

    def end_pool(self):
        name = self.rng.choice(NAMES)
        if name in self.engine.state.ledger.accounts:
            self.pools[name].append(None)
        self.step(s.PoolDeletionRequested(pool_name=name, drain=True, client="me"))

    def rename_pool(self):
        accounts = self.engine.state.ledger.accounts
        name, new_name = self.pick(accounts), self.pick(set(NAMES).difference(accounts))
        if "nobody" in (name, new_name):
            return
        spec = msgspec.structs.replace(accounts[name].spec, name=new_name)
        self.pools[name].append(None)
        self.pools[new_name].append(spec)
        self.step(s.PoolRenameRequested(pool_name=name, new_name=new_name))
        self.pools[name] = [None]
        self.note_pool(new_name, spec)

    def change_running(self):
        task_id = self.pick(self.engine.state.running.by_id)
        self.step(s.QueuedTaskChanged(task_id=task_id, priority=self.rng.choice(PRIORITIES)))

    def announce(self):
        """Announce a window, or put another one in its place."""
        window = random_window(self.rng, self.rng.choice(WINDOWS), self.now)
        accepted = self.windows[window.name]
        accepted.append(window)
        outcome = self.step(s.WindowRequested(window=window, replace=True, client="me"))
        if isinstance(outcome, Done):
            self.windows[window.name] = [window]
        else:
            accepted.remove(window)

    def delete_window(self):
        name = self.rng.choice(WINDOWS)
        self.windows[name].append(None)
        if isinstance(self.step(s.WindowDeletionRequested(name=name, client="me")), Done):
            self.windows[name] = [None]

    def change_policy(self):
        policy = random_policy(self.rng)
        self.policies = [*(self.policies or [PreemptionPolicy()]), policy]
        self.step(s.PolicyChangeRequested(policy=policy, client="me", changes=("topology_levels",)))
        self.policies = [policy]

    def submit(self):
        self._numbers += 1
        name = f"a{self.rng.randrange(8)}"
        request_id = f"r{self._numbers}"
        self.submit_and_wait(self.submission(name, request_id))

    def queue(self):
        self._numbers += 1
        submission = self.submission(f"w{self.rng.randrange(8)}", f"r{self._numbers}", queue=True)
        self.submit_and_wait(submission)

    def cancel(self):
        self.step(s.TaskCancellationRequested(task_id=self.pick(self.engine.state.queue.by_id)))

    def change_queued(self):
        changes = ({"held": True}, {"held": False}, {"priority": 9.0}, {"to_front": True})
        task_id = self.pick(self.engine.state.queue.by_id)
        self.step(s.QueuedTaskChanged(task_id=task_id, **self.rng.choice(changes)))

    def limit(self):
        state, max_run_s = self.engine.state, self.rng.choice([None, 1.0, 20.0])
        task_id = self.pick([*state.running.by_id, *state.queue.by_id])
        self.step(s.TimeLimitRequested(task_id=task_id, max_run_s=max_run_s))

    def submission(self, name, request_id, *, queue=False):
        labels = {
            "pool_name": self.rng.choice(POOLS),
            "resources": amount(**self.rng.choice(NEEDS)),
        }
        run = self.rng.choice(["", "train"])
        gang = self.rng.random() < 0.2
        if gang:
            labels |= {
                "resources": amount(cpu=2),
                "bundles": (amount(cpu=1),) * 2,
                "payload": GangPayload(strategy="PACK"),
            }
        task = s.TaskSpec(
            task_id=name,
            pool_name=labels["pool_name"],
            priority=self.rng.choice(PRIORITIES),
            owner=self.rng.choice(OWNERS),
            estimated_duration=self.rng.choice([None, 5.0, 50.0]),
            on_preempted=self.rng.choice(["", "requeue"]),
            run=run,
            max_retries=self.rng.choice([0, 2]),
            topology=self.rng.choice(TOPOLOGIES) if gang else "",
            max_run_s=self.rng.choice([None, None, 3.0, 40.0]),
            on_time_limit=self.rng.choice(["", "requeue"]),
            after=self.some_dependencies() if queue else (),
            array=self.rng.choice(["", "", "0-3%2", "0-4:2"]) if queue and run else "",
        )
        selector = parse_node_labels(self.rng.choice(SELECTORS), "label_selector")
        fallbacks = self.rng.sample(FALLBACKS, self.rng.choice([0, 0, 1])) if selector else ()
        agent = s.AgentSpec(name=name, class_key="class", node_labels=selector, **labels)
        return s.TaskSubmitted(
            agent=with_alternatives(agent, tuple(map(alternative, fallbacks))),
            task=task,
            request_id=request_id,
            queue=queue,
        )

    def some_dependencies(self):
        """Up to two tasks, each of which has to end in some way; most submissions have none."""
        state = self.engine.state
        on_record = sorted({*state.running.by_id, *state.queue.by_id, *state.ended})
        count = self.rng.choice([0, 0, 0, 1, 2])
        awaited = self.rng.sample(on_record, min(count, len(on_record)))
        return tuple(f"{self.rng.choice(['ok', 'any', 'fail'])}:{task_id}" for task_id in awaited)

    def submit_and_wait(self, stimulus):
        """Submit; ``init`` submits again whenever the supervisor crashed before it answered."""
        self.waiting[stimulus.request_id] = stimulus
        outcome = self.step(stimulus, {"class": b"code"})
        if isinstance(outcome, ProbeNeeded):
            self.step(s.ClassProbed(class_key="class"))
            outcome = self.step(stimulus, {"class": b"code"})
        if not isinstance(outcome, Pending):
            self.record_answer(stimulus.request_id, outcome)

    def finish(self):
        task_id = self.pick(self.engine.state.running.by_id)
        self.step(s.TaskFinished(task_id=task_id, end_agent=self.rng.random() < 0.8))

    def delete(self):
        self.step(s.AgentDeletionRequested(agent_name=self.pick(self.engine.state.agents)))

    def preempt(self):
        state = self.engine.state
        if self.rng.random() < 0.5:
            self.step(s.PreemptionRequested(task_id=self.pick(state.running.by_id)))
        else:
            name, hold = self.pick(state.agents), self.rng.choice([None, *POOLS])
            self.step(s.PreemptionRequested(agent_name=name, end_agent=True, for_pool=hold))

    def register(self):
        task = s.TaskSpec(task_id=f"x{self.rng.randrange(3)}", pool_name="p")
        agent_name = self.rng.choice(["elsewhere", self.pick(self.engine.state.agents)])
        self.step(s.TaskAnnounced(task=task, agent_name=agent_name))

    def kill_agent(self):
        """Kill an agent process; the supervisor may learn of it before or after its next crash."""
        if self.processes:
            name, incarnation = self.rng.choice(sorted(self.processes))
            self.end_process(name, incarnation)
            self.agent_gone(name, incarnation)

    def tick(self):
        self.now += self.rng.choice([1.0, 30.0])
        self.step(s.ClockTicked())

"""A state machine of pools with placement groups, and of gangs in any pool: submissions, evictions, nodes and
Ray do what they like.

After every step the books agree (``Mesh.handle`` checks them); at the end of every story all groups that are
not kept are gone, and the journal and a snapshot give the same state back.
"""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from schedulemesh.domain.labels import parse_selector
from schedulemesh.domain.payloads import SINGLE_PROCESS, AgentPayload, GangPayload, JobPayload
from schedulemesh.domain.placement import PLACEMENT_STRATEGIES, GroupsSpec, InGroup
from schedulemesh.domain.resources import NOTHING, sum_of
from schedulemesh.engine.admission.needs import divided
from schedulemesh.engine.messages import stimuli as s
from schedulemesh.engine.messages.outcomes import Accepted, Pending, Refused
from schedulemesh.engine.placement.bundles import Room
from schedulemesh.engine.placement.group_choice import without_idle
from schedulemesh.engine.state.agents import Running, Starting, Waiting
from schedulemesh.engine.state.groups import GroupPhase
from tests.engine.builders import Mesh, as_submitted, differences, leaving_for, node, pool, shape
from tests.engine.group_walk import decision_is_right

NODES = {
    "n1": {"cpu": 4, "memory": 400, "labels": {"rack": "r1"}},
    "n2": {"cpu": 4, "memory": 400, "gpu": 2, "labels": {"rack": "r1"}},
    "n3": {"cpu": 8, "memory": 200, "gpu": 1, "labels": {"rack": "r2"}},
}
#: What agents ask for, as bundles.
NEEDS = (
    ({"cpu": 1},),
    ({"cpu": 2},),
    ({"cpu": 2},),
    ({"cpu": 4},),
    ({"cpu": 1, "gpu": 0.5},),
    ({"cpu": 1, "gpu": 1},),
    ({"cpu": 1}, {"cpu": 1}),
    ({"cpu": 2}, {"cpu": 2}, {"cpu": 2}),
    ({"cpu": 30},),
)
LABELS = ({}, {"role": "train"}, {"role": "reward"}, {"role": "rollout"})
RULES = {"role": {"train": ("reward", "rollout"), "reward": ("rollout",)}}
POOLS = ("p", "q", "plain")
AGENTS = tuple(f"a{number}" for number in range(9))

picks = st.integers(0, 999)
strategies = st.sampled_from(PLACEMENT_STRATEGIES)
shapes = st.builds(
    lambda bundles, strategy: shape(*bundles, strategy=strategy),
    st.sampled_from(NEEDS[:8]),
    strategies,
)
specs = st.builds(
    GroupsSpec,
    reserved=st.lists(shapes, max_size=3).map(tuple),
    dynamic=st.booleans(),
    max_dynamic=st.integers(0, 3),
    reuse=st.booleans(),
    strategy=strategies,
    idle_s=st.sampled_from([5.0, 300.0]),
    entitled_labels=st.sampled_from([(), parse_selector({"role": "train"})]),
    fill_target=st.booleans(),
)
gangs = st.builds(
    GangPayload,
    strategy=st.sampled_from(["", *PLACEMENT_STRATEGIES]),
    same_label=st.sampled_from(["", "", "rack", "zone"]),
) | st.builds(GangPayload, replicas=st.sampled_from([2, 4]))
submissions = st.fixed_dictionaries(
    {
        "which": picks,
        "where": st.sampled_from(POOLS),
        "priority": st.sampled_from([0.0, 1.5, 5.0, 9.0]),
        "need": st.sampled_from(NEEDS),
        "labels": st.sampled_from(LABELS),
        "duration": st.sampled_from([None, 40.0]),
        "kind": st.sampled_from(["plain", "plain", "for group", "no preemption", "agent"]),
        "gang": st.one_of(st.none(), gangs),
        "job": st.sampled_from([False, False, True]),
        "topology": st.sampled_from(["", "", "rack", "preferred:rack", "slice:2:rack"]),
    }
)


def pick(options, number):
    """One of the options, whichever the number says."""
    ordered = sorted(options)
    return ordered[number % len(ordered)]


class GroupMachine(RuleBasedStateMachine):
    """Pools with groups beside one without, on three nodes."""

    def __init__(self):
        super().__init__()
        self.mesh = Mesh()
        self.up = set(NODES)
        self.requests = 0

    @property
    def state(self):
        return self.mesh.state

    @property
    def groups(self):
        return self.state.groups.by_id

    @initialize(p=specs, q=specs, quota=st.sampled_from([4, 12]), known=st.booleans())
    def begin(self, p, q, quota, known):
        self.mesh = Mesh(label_preemption_rules=RULES, topology_levels=("rack",))
        if known:
            self.observe()
        for name, spec in (("p", p), ("q", q), ("plain", None)):
            self.mesh.resize(pool(name, agents=4, cpu=quota, memory=800, gpu=2, groups=spec))
        self.observe()

    def observe(self):
        self.mesh.observe(*(node(n, **NODES[n]) for n in sorted(self.up)))

    @rule(given=submissions)
    def submit(self, given):
        self.ask(given)

    @rule(given=submissions)
    def run(self, given):
        name = self.ask(given)
        self.mesh.make_all()
        if name in self.mesh.starts:
            self.mesh.report(name)

    @rule(given=submissions)
    def evict_and_run(self, given):
        name = self.ask(given)
        agent = self.state.agents.get(name)
        if agent is None or not isinstance(agent.phase, Waiting):
            return
        for victim in leaving_for(agent):
            self.mesh.leave(victim, saved=True)
        for group_id in sorted(self.mesh.removes):
            self.mesh.remove(group_id)
        self.mesh.make_all()
        if not self.state.agents.get(name) or name not in self.mesh.starts:
            raise AssertionError(f"{name} has evicted, and cannot start")
        self.mesh.report(name)

    def ask(self, given):
        """Submit, after a dry run that must say the same; a refusal holds nothing."""
        free = [name for name in AGENTS if name not in self.state.agents]
        name = pick(free or AGENTS, given["which"])
        self.requests += 1
        kind, bundles = given["kind"], given["need"]
        payload = given["gang"] or (JobPayload() if given["job"] else SINGLE_PROCESS)
        topology = given["topology"]
        if isinstance(payload, AgentPayload) or getattr(payload, "replicas", 0) or kind == "agent":
            topology = ""
        if topology.startswith("slice") and len(bundles) == 3:
            topology = ""
        many = len(bundles) > 1 or not isinstance(payload, AgentPayload)
        stimulus = self.mesh.submission(
            name,
            given["where"],
            given["priority"],
            task=kind != "agent",
            labels=given["labels"],
            duration=given["duration"],
            bundles=bundles if many else (),
            payload=payload,
            topology=topology,
            more={
                "request_id": f"r{self.requests}",
                "may_preempt": kind != "no preemption",
                "for_group": kind == "for group",
            },
            **({} if many else bundles[0]),
        )
        asked = {field: getattr(stimulus, field) for field in stimulus.__struct_fields__}
        seen = len(self.mesh.facts)
        dry = self.mesh.handle(s.TaskSubmitted(**{**asked, "dry_run": True})).outcome
        assert len(self.mesh.facts) == seen, "a dry run made facts"
        if self.state.nodes_known:
            decision_is_right(self.mesh, stimulus, dry)
        outcome = self.mesh.handle(stimulus).outcome
        if isinstance(outcome, Refused):
            assert as_submitted(dry) == outcome
            assert outcome.error
            return name
        assert isinstance(outcome, Pending)
        assert isinstance(dry, Accepted)
        agent = self.state.agents[name]
        assert (agent.submission.evicting, agent.node_id) == (dry.preempted, dry.node_id)
        path = agent.place.path if isinstance(agent.place, InGroup) else ""
        assert path == dry.group_path
        self.it_lives_where_it_may(given, name)
        return name

    def it_lives_where_it_may(self, given, name):
        agent = self.state.agents[name]
        spec = self.state.ledger.accounts[given["where"]].spec.groups
        over_bundles = isinstance(agent.spec.payload, JobPayload) and len(agent.spec.bundles) > 1
        if spec is None and given["gang"] is None and not over_bundles:
            assert agent.group_id is None
            return
        group = self.groups[agent.group_id]
        assert group.pool_name == given["where"]
        assert group.shape.virtual == (isinstance(agent.spec.payload, JobPayload))
        need = agent.spec.bundles or (agent.spec.resources,)
        assert group.shape.holds(need)
        if given["gang"] is not None:
            self.members_stand_as_asked(given["gang"], group)
        if group.shape.topology is not None and group.shape.topology.required:
            assert len({NODES[n]["labels"]["rack"] for n in group.node_ids}) == 1
        if group.reserved:
            by_label = bool(spec.entitled_labels) and given["labels"] == {"role": "train"}
            priority = 5.0 if given["kind"] == "agent" else given["priority"]
            assert priority >= 5.0 or by_label
        else:
            assert group.shape.bundles == need
        if given["kind"] in ("for group", "agent") and agent.submission.evicting:
            assert given["kind"] == "agent" or agent.place.path == "preempted"

    def members_stand_as_asked(self, gang, group):
        nodes = set(group.node_ids)
        assert gang.strategy in ("", group.shape.strategy)
        assert group.shape.strategy != "STRICT_PACK" or len(nodes) == 1
        assert group.shape.strategy != "STRICT_SPREAD" or len(nodes) == len(group.node_ids)
        if gang.same_label:
            assert len({NODES[n]["labels"][gang.same_label] for n in nodes}) == 1

    @rule(which=picks, nodes=st.lists(st.sampled_from(sorted(NODES)), min_size=1, max_size=3))
    def have_work_elsewhere(self, which, nodes):
        """Ray has placed the work of a job on these nodes; some of it may fit there, and some not."""
        agents = self.state.agents.items()
        jobs = [
            n
            for n, a in agents
            if isinstance(a.spec.payload, JobPayload) and isinstance(a.phase, Running)
        ]
        if jobs:
            agent = self.state.agents[pick(jobs, which)]
            parts = zip(nodes, divided(agent.spec.resources, len(nodes)), strict=True)
            claims = {node_id: amount for node_id, amount in parts if amount}
            if sum_of(claims.values()) == agent.spec.resources:
                self.mesh.find_work(agent.spec.name, claims)

    @rule(which=picks)
    def report(self, which):
        if self.mesh.starts:
            self.mesh.report(pick(self.mesh.starts, which))

    @rule(which=picks)
    def fail_to_start(self, which):
        if self.mesh.starts:
            self.mesh.fail(pick(self.mesh.starts, which))

    @rule(which=picks, saved=st.booleans())
    def leave(self, which, saved):
        if self.mesh.ends:
            name = pick(self.mesh.ends, which)
            self.mesh.starts.pop(name, None)
            self.mesh.leave(name, saved=saved)

    @rule(which=picks)
    def make(self, which):
        if self.mesh.makes:
            self.mesh.make(pick(self.mesh.makes, which))

    @rule(which=picks)
    def fail_to_make(self, which):
        if self.mesh.makes:
            self.mesh.unmake(pick(self.mesh.makes, which))

    @rule(which=picks)
    def remove(self, which):
        if self.mesh.removes:
            self.mesh.remove(pick(self.mesh.removes, which))

    @rule(which=picks)
    def lose_group(self, which):
        ready = [g for g, group in self.groups.items() if group.phase is GroupPhase.READY]
        if ready:
            self.mesh.remove(pick(ready, which))

    @rule(which=picks)
    def lose_agent(self, which):
        if self.state.agents:
            name = pick(self.state.agents, which)
            self.mesh.starts.pop(name, None)
            self.mesh.ends.pop(name, None)
            self.mesh.die(name)

    @rule(which=picks, end_agent=st.booleans())
    def finish(self, which, end_agent):
        if self.state.running.by_id:
            task_id = pick(self.state.running.by_id, which)
            self.mesh.handle(s.TaskFinished(task_id=task_id, end_agent=end_agent))

    @rule(name=st.sampled_from(AGENTS), destroy=st.sampled_from([None, True, False]))
    def delete(self, name, destroy):
        self.mesh.delete(name, destroy)

    @rule(name=st.sampled_from(AGENTS))
    def preempt(self, name):
        self.mesh.preempt(agent_name=name, end_agent=True)

    @rule(name=st.sampled_from(["p", "q"]), spec=st.one_of(st.none(), specs))
    def reshape(self, name, spec):
        old = self.state.ledger.accounts[name].spec
        self.mesh.resize(
            pool(
                name,
                agents=4,
                cpu=old.resources.cpu / 10_000,
                memory=800,
                gpu=2,
                groups=spec,
            )
        )

    @rule(node_id=st.sampled_from(sorted(NODES)), up=st.booleans())
    def flip_node(self, node_id, up):
        (self.up.add if up else self.up.discard)(node_id)
        self.observe()

    @rule(node_id=st.sampled_from(sorted(NODES)), cordoned=st.booleans())
    def cordon(self, node_id, cordoned):
        self.mesh.cordon(node_id, cordoned)

    @rule(seconds=st.sampled_from([0.0, 6.0, 40.0]))
    def tick(self, seconds):
        self.mesh.tick(seconds)

    @rule(share=picks)
    def recover(self, share):
        """The supervisor was killed: what was requested of Ray may or may not have been done."""
        lives = frozenset(
            (name, agent.incarnation)
            for at, (name, agent) in enumerate(self.state.agents.items())
            if not isinstance(agent.phase, Waiting) and (share >> at) & 1
        )
        groups = frozenset(
            group_id
            for at, (group_id, group) in enumerate(self.groups.items())
            if group.phase is GroupPhase.READY or (share >> at) & 1
        )
        self.mesh.starts.clear()
        self.mesh.ends.clear()
        self.mesh.makes.clear()
        self.mesh.removes.clear()
        self.mesh.handle(s.RecoveryObserved(living=lives, groups=groups))

    @invariant()
    def whoever_waits_can_be_helped(self):
        """No agent waits for something that nobody does."""
        for name, agent in self.state.agents.items():
            if isinstance(agent.phase, Waiting):
                own = {agent.group_id} if agent.group_id in agent.phase.for_groups else set()
                others = agent.phase.for_groups - own
                busy = bool(agent.phase.for_agents) or any(
                    g in self.mesh.removes or self.groups[g].agent is not None for g in others
                )
                assert busy or agent.group_id in self.mesh.makes, name
            elif isinstance(agent.phase, Starting):
                assert name in self.mesh.starts or name in self.mesh.ends, name

    @invariant()
    def what_ends_is_told(self):
        for group_id, group in self.groups.items():
            if group.phase is GroupPhase.ENDING:
                assert group_id in self.mesh.removes
            if group.phase is GroupPhase.CREATING:
                assert group_id in self.mesh.makes

    def teardown(self):
        if not self.state.ledger.accounts:
            return
        assert differences(self.state, self.mesh.refolded()) == []
        assert differences(self.state, self.mesh.rewritten()) == []
        self.finish_everything()
        for name, account in self.state.ledger.accounts.items():
            assert (account.reserved, account.used) == (NOTHING, NOTHING), name
        for group in self.groups.values():
            assert group.free
        self.reserved_groups_are_there()
        for name in ("p", "q"):
            self.mesh.resize(pool(name, agents=4, cpu=12, memory=800, gpu=2))
        self.finish_everything()
        assert not self.groups
        for found in self.state.cluster.nodes.values():
            assert found.allocations == {}
            assert found.free == found.total - found.external_usage

    def reserved_groups_are_there(self):
        """Once all is quiet, what is missing has no room, not even where idle groups stand."""
        for _ in range(10):
            seen = len(self.mesh.facts)
            self.mesh.tick(40.0)
            self.finish_everything()
            if len(self.mesh.facts) == seen:
                break
        else:
            raise AssertionError("groups are made and removed for ever")
        kept = {name for name in ("p", "q") if self.state.ledger.accounts[name].spec.groups}
        assert {group.pool_name for group in self.groups.values()} <= kept
        for name in ("p", "q"):
            for lacking in self.state.groups.lacking(name):
                found = without_idle(Room(self.state.cluster), lacking, self.state.groups.idle())
                assert found is None

    def finish_everything(self):
        while self.state.agents or self.mesh.removes or self.mesh.makes:
            for name in sorted(self.state.agents):
                self.mesh.delete(name)
            for name in sorted(self.mesh.ends):
                self.mesh.starts.pop(name, None)
                self.mesh.leave(name)
            for group_id in sorted(self.mesh.removes):
                self.mesh.remove(group_id)
            self.mesh.make_all()
        for task_id in sorted(self.state.running.by_id):
            self.mesh.complete(task_id)


TestGroups = GroupMachine.TestCase
TestGroups.settings = settings(
    max_examples=int(os.environ.get("HYPOTHESIS_EXAMPLES", "200")),
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)

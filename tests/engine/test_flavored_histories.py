"""Random histories of pools with flavors. Told to a second mesh whose pools have all of their quota in one
flavor of every node, they must be decided the same, step by step; and pools may gain, change and lose flavors
at any time. FLAVORED_STIMULI and SCHEDULEMESH_SEED set how many stimuli, and which again.
"""

from __future__ import annotations

import os

import msgspec

from schedulemesh.domain.agent import Alternative, with_alternatives
from schedulemesh.domain.cohort import LoanLimit
from schedulemesh.domain.flavors import Flavor, TakenFlavor, covered_kinds
from schedulemesh.domain.owner_limits import parse_owner_limits
from schedulemesh.domain.resources import NOTHING, Resources
from schedulemesh.engine.messages import stimuli as s
from schedulemesh.engine.messages.facts import AgentAdmitted
from tests.engine.builders import Mesh, amount
from tests.engine.histories import History, TwinMesh
from tests.engine.random_specs import Dice

#: No node has the label, so that the condition holds on each.
EVERY_NODE = ("no-such-label", "!any")
KINDS = ("cpu", "gpu", "memory", "x")
EVERY = Flavor(name="every", node_labels=(EVERY_NODE,), kinds=KINDS)
TAKEN = TakenFlavor(name="every", kinds=KINDS)
#: Fields that the flavor changes, beside sentences.
LEFT_OUT = ("flavor", "flavors", "custom", "warnings")


def flavored(spec):
    """A pool whose quota is all in the flavor of every node."""
    return msgspec.structs.replace(
        spec,
        resources=TAKEN.quota_of(spec.resources),
        flavors=(EVERY,),
        lending_limit=limit_of_flavor(spec.lending_limit),
        borrowing_limit=limit_of_flavor(spec.borrowing_limit),
    )


def limit_of_flavor(limit):
    if limit is None or limit.nothing:
        return limit
    return LoanLimit(named=tuple(sorted((f"{kind}@every", n) for kind, n in limit.named)))


def plain(value):
    """What was decided, without the flavor."""
    if isinstance(value, dict):
        folded: dict = {
            key: plain(part)
            for key, part in value.items()
            if key not in LEFT_OUT and not key.endswith(("_text", "error", "hint"))
        }
        custom = {}
        for kind, units in value.get("custom") or ():
            base, _, name = kind.partition("@")
            if name and base in ("cpu", "gpu", "memory"):
                folded[base] = folded.get(base, 0) + units
            else:
                custom[base] = custom.get(base, 0) + units
        if not folded.get("node_labels", True):
            del folded["node_labels"]
        return folded | ({"custom": sorted(custom.items())} if custom else {})
    if isinstance(value, (list, tuple)):
        parts = [plain(part) for part in value if part not in (EVERY_NODE, list(EVERY_NODE))]
        if parts and all(type(p) is list and [*map(type, p)] == [str, int] for p in parts):
            return sorted([name.partition("@")[0], units] for name, units in parts)
        return parts
    return value


def decided(step):
    outcome = step.outcome
    return plain(
        msgspec.to_builtins(
            {
                "facts": [(type(fact).__name__, fact) for fact in step.facts],
                "instructions": [(type(one).__name__, one) for one in step.instructions],
                "outcome": (type(outcome).__name__, outcome),
            }
        )
    )


def unlike(one, other, path=""):
    """Where two values differ."""
    if type(one) is type(other) is dict:
        for key in one.keys() | other.keys():
            yield from unlike(one.get(key), other.get(key), f"{path}/{key}")
    elif type(one) is type(other) is list and len(one) == len(other):
        for number, pair in enumerate(zip(one, other, strict=True)):
            yield from unlike(*pair, f"{path}/{number}")
    elif one != other:
        yield f"{path}: {one} is {other} in the flavor"


class FlavoredMesh(TwinMesh):
    """A mesh beside one with flavors."""

    def __init__(self, strategy):
        self.flavored = Mesh(strategy=strategy)
        super().__init__(strategy)

    def handle(self, stimulus):
        step = super().handle(stimulus)
        self.flavored.now = self.now
        if isinstance(stimulus, s.PoolRequested):
            stimulus = msgspec.structs.replace(stimulus, spec=flavored(stimulus.spec))
        told = self.flavored.handle(stimulus)
        differences = [*unlike(decided(step), decided(told))]
        assert not differences, "\n".join(differences)
        return step

    def rebuild_twin(self, *, from_facts):
        super().rebuild_twin(from_facts=from_facts)
        self.flavored.state.queue.advance(self.latest)  # as in both of the others


class FlavoredHistory(History):
    def __init__(self, seed):
        super().__init__(seed)
        self.mesh = FlavoredMesh(self.mesh.engine.strategies.node)


#: Flavors that nodes of histories are in, or come into: some have a rack.
RACKS = (
    Flavor(name="first", node_labels=(("rack", "r1"),)),
    Flavor(name="others", node_labels=(("rack", "!r1"),), kinds=("cpu", "gpu")),
    Flavor(name="second", node_labels=(("rack", "in(r2,r3)"),), kinds=("gpu", "x")),
)


class ChangingDice(Dice):
    """Most pools have flavors, in any order, with a part of the quota each."""

    def pool(self, name):
        spec = super().pool(name)
        flavors = tuple(self.sample(RACKS, self.any((0, 1, 2, 3))))
        quota = NOTHING
        for flavor in flavors:
            of_flavor = flavor.quota_of(spec.resources)
            quota = quota + of_flavor.beyond(quota)
        plain_kinds = dict(spec.resources.items()).keys() - covered_kinds(flavors)
        quota = Resources(
            **{kind: getattr(spec.resources, kind) for kind in plain_kinds - {"x"}},
            custom=tuple(
                (kind, units) for kind, units in quota.custom if kind in plain_kinds or "@" in kind
            ),
        )
        return msgspec.structs.replace(
            spec, resources=quota if flavors else spec.resources, flavors=flavors
        )


class ChangingHistory(History):
    def __init__(self, seed):
        super().__init__(seed)
        self.dice = ChangingDice(seed)


#: Labels of nodes that tasks ask for, and what they take in a further alternative.
SELECTORS = ((), (("rack", "r1"),), (("rack", "!r1"),), (("rack", "in(r2,r3)"),))
AMOUNTS = (amount(cpu=1), amount(gpu=1), amount(cpu=2, gpu=0.5))
OWNER_LIMITS = ({}, {"default": {"gpu": 1}}, {"default": {"running": 2}, "ada": {"cpu": 8}})


class OwnersDice(ChangingDice):
    """Pools may also limit their owners, and be fair between them."""

    def pool(self, name):
        return msgspec.structs.replace(
            super().pool(name),
            owner_order=self.any(("none", "fair")),
            owner_limits=parse_owner_limits(self.any(OWNER_LIMITS)),
        )


class WaysHistory(ChangingHistory):
    """Tasks of several owners ask for labels of nodes, and many have alternatives."""

    def __init__(self, seed):
        super().__init__(seed)
        self.dice = OwnersDice(seed)

    def submission(self, **more):
        submission = super().submission(**more)
        agent, task = submission.agent, submission.task
        agent = msgspec.structs.replace(agent, node_labels=self.any(SELECTORS))
        if self.chance(0.4) and agent.resources and not submission.default_resources:
            others = [self.alternative(agent) for _ in range(self.any((1, 2)))]
            agent = with_alternatives(agent, tuple(others))
        if task is not None:
            task = msgspec.structs.replace(task, owner=self.any(("", "ada", "ben")))
        return msgspec.structs.replace(submission, agent=agent, task=task)

    def alternative(self, agent):
        has_amount = not agent.bundles and self.chance(0.4)
        return Alternative(
            node_labels=self.any(SELECTORS), resources=self.any(AMOUNTS) if has_amount else None
        )

    def _node(self, name):
        rack = self.any(("r1", "r2", "r3"))
        return msgspec.structs.replace(super()._node(name), labels={"rack": rack})


def run(history_of):
    seed = os.environ.get("SCHEDULEMESH_SEED", "1")
    print(f"SCHEDULEMESH_SEED={seed}")
    told, number, admitted = 0, 0, 0
    while told < int(os.environ.get("FLAVORED_STIMULI", "4000")):
        history = history_of(f"{seed}/{number}")
        history.run()
        told, number = told + history.stimuli, number + 1
        facts = history.mesh.facts
        admitted += sum(isinstance(f, AgentAdmitted) and f.agent.flavor is not None for f in facts)
    return admitted


def test_one_flavor_of_every_node_changes_no_decision():
    run(FlavoredHistory)


def test_pools_may_gain_and_lose_flavors_at_any_time():
    assert run(ChangingHistory) > 50


def test_tasks_have_alternatives_and_owners_in_pools_that_change():
    assert run(WaysHistory) > 50

"""What is declared in place of the definitions of a history; as with ``schedulemesh apply``, what is left out
stays as the history has it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from schedulemesh.config.policy import PreemptionPolicy, changed_policy
from schedulemesh.config.queueing import QueuePolicy, changed_queue_policy
from schedulemesh.domain.cohort import CohortSpec
from schedulemesh.domain.flavors import SEPARATOR, covered_kinds
from schedulemesh.domain.pool import PoolSpec
from schedulemesh.engine.messages import stimuli as s
from schedulemesh.engine.state.mesh_state import MeshState
from schedulemesh.errors import InvalidRequestError
from schedulemesh.sim.policy import changed_cohort, changed_pool, parse_parts

_CLIENT = "rehearsal"


class Declared:
    """What a policy file declares, and quotas of pools in units of GPU. Everything raises InvalidRequestError
    for fields and values that are not allowed.
    """

    def __init__(
        self, policy: Mapping[str, Any] | None = None, quotas: Mapping[str, int] | None = None
    ) -> None:
        self._parts, self._quotas = parse_parts(policy or {}), quotas or {}

    def requests(self, state: MeshState) -> Iterator[s.AnyStimulus]:
        """The requests that put it in force, each to be made before the next is asked for."""
        cohorts, accounts = state.ledger.cohorts.specs, state.ledger.accounts
        for name in dict.fromkeys(fields["name"] for fields in self._parts.cohorts):
            cohort = cohorts.get(name) or CohortSpec(name=name)
            yield s.CohortRequested(spec=self.cohort(cohort))
        pools = dict.fromkeys(fields["name"] for fields in self._parts.pools)
        for name in (*pools, *(name for name in self._quotas if name not in pools)):
            account = accounts.get(name)
            if account is None and name not in pools:
                raise InvalidRequestError(
                    f"there was no pool {name!r} at that time; pools were {', '.join(accounts)}"
                )
            spec = PoolSpec(name=name) if account is None else account.spec
            yield s.PoolRequested(spec=self.pool(spec))
        if self._parts.preemption:
            preemption = self.preemption(state.policy)
            yield s.PolicyChangeRequested(policy=preemption, client=_CLIENT, changes=())
        if self._parts.queue:
            queue = self.queue(state.queue.policy)
            yield s.QueuePolicyChangeRequested(policy=queue, client=_CLIENT, changes=())

    def cohort(self, spec: CohortSpec) -> CohortSpec:
        """The cohort with what is declared of it."""
        for fields in self._parts.cohorts:
            if fields["name"] == spec.name:
                spec = changed_cohort(spec, fields)
        return spec

    def pool(self, spec: PoolSpec) -> PoolSpec:
        """The pool with what is declared of it."""
        for fields in self._parts.pools:
            if fields["name"] == spec.name:
                spec = changed_pool(spec, fields)
        if spec.name in self._quotas:
            if "gpu" in covered_kinds(spec.flavors):
                raise InvalidRequestError(
                    f"pool {spec.name!r} has a quota of GPUs for each flavor; give these in a policy "
                    f"file, as {SEPARATOR.join(('gpu', spec.flavors[0].name))} among its resources"
                )
            quota = msgspec.structs.replace(spec.resources, gpu=self._quotas[spec.name])
            spec = msgspec.structs.replace(spec, resources=quota)
        return spec

    def preemption(self, policy: PreemptionPolicy) -> PreemptionPolicy:
        """The preemption policy with the fields that are declared."""
        return changed_policy(policy, self._parts.preemption)

    def queue(self, policy: QueuePolicy) -> QueuePolicy:
        """The policy of the queue with the fields that are declared."""
        return changed_queue_policy(policy, self._parts.queue)

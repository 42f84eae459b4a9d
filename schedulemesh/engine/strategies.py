"""Which pool takes a task that names none."""

from __future__ import annotations

from schedulemesh.domain.labels import Selector, matches
from schedulemesh.domain.resources import Resources
from schedulemesh.engine.ledger import Account, Ledger

#: How the node of an agent is chosen; see Cluster.choose.
NODE_STRATEGIES = ("bin_pack", "spread")


def choose_pool(ledger: Ledger, selector: Selector, need: Resources | None) -> str | None:
    """The matching pool that can ever hold the need, best score first, then name; None: there is none.

    A need of None means each pool's own default agent.
    """
    scored = []
    for name, account in ledger.accounts.items():
        spec = account.spec
        wanted = spec.default_agent() if need is None else need
        if matches(selector, spec.labels) and wanted.fits(spec.resources):
            scored.append((-score_pool(account, wanted), name))
    return min(scored)[1] if scored else None


def score_pool(account: Account, need: Resources) -> float:
    """How much room the pool would keep: the least free fraction of any kind needed, after taking the need.

    Below 0 where it is short now; 1 for a need of nothing.
    """
    free = dict((account.free - need).items())
    total = dict(account.spec.resources.items())
    return min((free.get(kind, 0) / total[kind] for kind, _ in need.items()), default=1.0)

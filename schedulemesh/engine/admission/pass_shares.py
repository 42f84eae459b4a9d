"""The shares by which a pass over the queue compares pools."""

from __future__ import annotations

from schedulemesh.engine.state.queue_classes import QueueClass
from schedulemesh.engine.state.shares import ShareKey, Shares, dominant_usage, raised_weight
from schedulemesh.engine.transaction import Transaction


class PassShares:
    """The shares of pools in one pass. They change with facts alone, and only grow while tasks start."""

    def __init__(self, tx: Transaction) -> None:
        self._tx = tx
        self._raises: dict[str, float] = {}
        #: The shares of pools since the last fact, and the number of facts before that.
        self._shares: dict[str, ShareKey] = {}
        self._book = Shares(tx.state, tx.now)
        self._facts = 0

    def usage(self, queue_class: QueueClass) -> ShareKey:
        """The dominant share of all quota that the pool's tasks hold, by its weight."""
        pool_name = queue_class.pool_name
        return (dominant_usage(self._tx.state, pool_name) / self._raise_of(pool_name),)

    def share(self, queue_class: QueueClass) -> ShareKey:
        """The share by which borrowers are compared."""
        pool_name, facts = queue_class.pool_name, len(self._tx.facts)
        if facts != self._facts:
            self._shares, self._facts = {}, facts
            self._book = Shares(self._tx.state, self._tx.now)
        if pool_name not in self._shares:
            *above, own_share = self._book.key(pool_name)
            self._shares[pool_name] = (*above, own_share / self._raise_of(pool_name))
        return self._shares[pool_name]

    def _raise_of(self, pool_name: str) -> float:
        """By which factor the wait of the pool's first task raises its weight: in one pass the same, so that
        shares only grow in it.
        """
        if pool_name not in self._raises:
            self._raises[pool_name] = raised_weight(self._tx.state, pool_name, self._tx.now)
        return self._raises[pool_name]

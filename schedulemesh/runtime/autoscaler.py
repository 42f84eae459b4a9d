"""Autoscaler requests: asks Ray for nodes on which unplaceable placement groups fit."""

from __future__ import annotations

import logging

from schedulemesh.domain.resources import Resources
from schedulemesh.engine.explain import unplaced
from schedulemesh.engine.state.mesh_state import MeshState
from schedulemesh.runtime.backend import Backend, BackendError

logger = logging.getLogger(__name__)


class AutoscalerRequest:
    """Keeps Ray's one global slot for requests up to date, if a pool says ``request_resources``.

    Ray Train and Ray Data write the same slot, and the last writer wins: only one of them may be used.
    """

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        #: What was asked for last; None: nothing yet, though a former supervisor may have.
        self._asked: list[Resources] | None = None

    async def notify(self, state: MeshState) -> None:
        """Ask for what is wanted now, where that is something new; withdraw it when nothing is."""
        asking = [
            account.spec.name
            for account in state.ledger.accounts.values()
            if account.spec.groups is not None and account.spec.groups.autoscale
        ]
        if not asking and not self._asked:
            return
        bundles = [
            bundle
            for name in asking
            for shape, _ in unplaced(state, name)
            for bundle in shape.bundles
        ]
        if bundles != self._asked:
            await self._ask(bundles)

    async def withdraw(self) -> None:
        """Ask for nothing any more."""
        if self._asked:
            await self._ask([])

    async def _ask(self, bundles: list[Resources]) -> None:
        try:
            await self._backend.request_capacity(bundles)
        except BackendError as error:
            logger.warning("the autoscaler cannot be asked: %s", error)
            return
        self._asked = bundles

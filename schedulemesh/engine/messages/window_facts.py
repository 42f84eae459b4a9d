"""Facts about maintenance windows; see ``facts``."""

from __future__ import annotations

from typing import Union

from schedulemesh.domain.windows import MaintenanceWindow
from schedulemesh.engine.messages.fact import Fact


class WindowCreated(Fact, tag="window_created", frozen=True, kw_only=True):
    """There is a maintenance window."""

    window: MaintenanceWindow
    at: float
    client: str = ""


class WindowEnded(Fact, tag="window_ended", frozen=True, kw_only=True):
    """A maintenance window exists no more; the nodes that it closes are opened by facts of their own."""

    name: str
    at: float
    #: The client that deleted it; empty: it is over, and does not come again.
    client: str = ""


class WindowNodesChosen(Fact, tag="window_nodes_chosen", frozen=True, kw_only=True):
    """These nodes are reserved by a window of an amount, in place of those that were before."""

    name: str
    at: float
    #: The opening for which they were chosen.
    start: float
    node_ids: tuple[str, ...] = ()


AnyWindowFact = Union[WindowCreated, WindowEnded, WindowNodesChosen]

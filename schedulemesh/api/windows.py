"""Windows, at which nodes are maintained or reserved: list, create and delete them."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, TypedDict

from schedulemesh.api.call import Call, ChangingCall
from schedulemesh.api.routes import ListRoute, delete, post
from schedulemesh.api.values import Checked, ClientName, Labels, Name, Names, Seconds
from schedulemesh.domain.names import parse_name
from schedulemesh.domain.node_labels import parse_node_labels
from schedulemesh.domain.reasons import Reason
from schedulemesh.domain.resources import Amounts
from schedulemesh.domain.windows import (
    DEFAULT_NOTICE_S,
    MaintenanceWindow,
    check_repeat,
    parse_amount,
    parse_instant,
)
from schedulemesh.errors import InvalidRequestError


def _check_comment(value: str, what: str) -> None:
    if value:
        parse_name(value, what)


class WindowInfo(TypedDict, total=False):
    """A time at which nodes are maintained or reserved; times are seconds since 1970."""

    name: str
    #: When it opens for the first time, by the clock in which that was given.
    start: str
    duration_s: float
    #: "daily", "weekly" or None: once.
    repeat: str | None
    #: The nodes that were named, or by which labels they are chosen; with neither it is for all.
    nodes: list[str]
    node_labels: dict[str, str]
    #: How much it reserves, on nodes with these labels that the scheduler chooses; empty: all of them.
    resources: Amounts
    #: What of that the chosen nodes lack, because there are no more.
    short: Amounts
    #: From so many seconds before it on no task starts there whose end is not known.
    notice_s: float
    comment: str
    #: For whom it reserves the nodes: any of these pools or owners, or all of these labels; with none of
    #: these it is for maintenance.
    pools: list[str]
    owners: list[str]
    labels: dict[str, str]
    #: Whether it is open now.
    open: bool
    #: When it opens and closes, now or next.
    next_start: float
    next_end: float
    #: The nodes of the cluster that it is for, by id.
    node_ids: list[str]


class CreateWindow(ChangingCall, tag="create_window", frozen=True, kw_only=True):
    """Announce that nodes are maintained or reserved; a different window of this name is a conflict, or it is
    replaced.
    """

    routes: ClassVar = (
        post(
            "/windows",
            "Announce that nodes are maintained or reserved",
            renamed={"duration_s": "duration", "notice_s": "notice"},
        ),
    )

    name: Name
    #: A date and a time with the offset from UTC.
    start: Annotated[str, Checked(parse_instant)]
    duration_s: Seconds
    #: One of ``REPEATS``; None: once.
    repeat: str | None = None
    #: One of these three is given, unless an amount is reserved.
    nodes: Names | None = None
    node_labels: Annotated[dict[str, str] | None, Checked(parse_node_labels)] = None
    all_nodes: bool = False
    #: How much is reserved, of one kind: nodes that have it are chosen, those with node_labels or any.
    resources: Annotated[dict[str, Any] | None, Checked(parse_amount)] = None
    notice_s: Seconds = DEFAULT_NOTICE_S
    comment: Annotated[str, Checked(_check_comment)] = ""
    #: For whom it reserves the nodes; with none of these it is for maintenance.
    pools: Names | None = None
    owners: Names | None = None
    labels: Labels | None = None
    #: Whether it takes the place of a different window of this name, in one step.
    replace: bool = False
    client: ClientName

    def __post_init__(self) -> None:
        super().__post_init__()
        check_repeat(self.duration_s, self.repeat or "")
        if self.resources is not None:
            self._check_amount()
        elif [bool(self.nodes), bool(self.node_labels), self.all_nodes].count(True) != 1:
            raise InvalidRequestError(
                "a window is for nodes, for those with node_labels, or for all_nodes; give one of the three"
            )

    def _check_amount(self) -> None:
        """Raise InvalidRequestError unless an amount is reserved for somebody, on nodes that are chosen."""
        if self.nodes or self.all_nodes:
            raise InvalidRequestError(
                "the nodes of a window with resources are chosen among those with node_labels, or among all; "
                "leave out nodes and all_nodes"
            )
        if not (self.pools or self.owners or self.labels):
            raise InvalidRequestError(
                "a window with resources reserves them for somebody; give pools, owners or labels"
            )

    @property
    def window(self) -> MaintenanceWindow:
        """Its definition."""
        start, utc_offset = parse_instant(self.start, "start")
        return MaintenanceWindow(
            name=self.name,
            start=start,
            duration_s=self.duration_s,
            repeat=self.repeat or "",
            node_ids=tuple(sorted(self.nodes or ())),
            node_labels=parse_node_labels(self.node_labels, "node_labels"),
            resources=parse_amount(self.resources),
            notice_s=self.notice_s,
            utc_offset=utc_offset,
            comment=self.comment,
            pools=tuple(sorted(self.pools or ())),
            owners=tuple(sorted(self.owners or ())),
            labels=self.labels or {},
        )


class DeleteWindow(ChangingCall, tag="delete_window", frozen=True, kw_only=True):
    """Delete a window; nodes that it closes open again."""

    routes: ClassVar = (
        delete("/windows/{name}", "Delete a window of maintenance or of a reservation"),
    )

    name: Name
    client: ClientName


class ListWindows(Call, tag="list_windows", frozen=True, kw_only=True):
    """List the windows that are open or to come."""

    listings: ClassVar = (
        ListRoute(
            path="/windows",
            summary="List the windows of maintenance and of reservations that are open or to come",
            row=WindowInfo,
            key=("name",),
            missing=Reason.WINDOW_NOT_FOUND,
        ),
    )

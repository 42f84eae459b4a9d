"""The calls about windows, at which nodes are maintained or reserved."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from schedulemesh.api.results import Result
from schedulemesh.api.values import client_name
from schedulemesh.api.windows import CreateWindow, DeleteWindow, ListWindows
from schedulemesh.client.arguments import parse_ids, public_calls
from schedulemesh.client.asking import done, listed
from schedulemesh.client.listings import WindowsResult
from schedulemesh.client.scheduler_object import SchedulerObject
from schedulemesh.domain.labels import parse_labels
from schedulemesh.domain.names import parse_name
from schedulemesh.domain.node_labels import parse_node_labels
from schedulemesh.domain.numbers import parse_flag, parse_timeout
from schedulemesh.domain.windows import DEFAULT_NOTICE_S, parse_amount


@public_calls
class WindowCalls(SchedulerObject):
    """A scheduler object that announces the maintenance of nodes."""

    def create_window(
        self,
        name: str,
        start: str,
        duration: float | str,
        *,
        nodes: str | Iterable[str] | None = None,
        node_labels: Mapping[str, str] | None = None,
        all_nodes: bool = False,
        resources: Mapping[str, float | str | Mapping[str, float]] | None = None,
        repeat: str | None = None,
        notice: float | str = DEFAULT_NOTICE_S,
        comment: str = "",
        pools: str | Iterable[str] | None = None,
        owners: str | Iterable[str] | None = None,
        labels: Mapping[str, str] | None = None,
        replace: bool = False,
    ) -> Result:
        """Announce a maintenance window: no task starts there that would reach into it, what still runs is
        evicted in time, and nothing starts while it is open. With ``pools``, ``owners`` or ``labels`` it
        reserves the nodes for tasks of any of these pools or owners, or with all these labels, which it does
        not concern.

        ``start``: a date and a time with the offset from UTC, such as "2026-12-05T22:00+01:00"; ``duration``
        and ``notice``: seconds, or texts such as "4h". ``nodes``, ``node_labels`` or ``all_nodes``: which
        nodes. ``resources``: how much to reserve, of one kind, such as ``{"gpu": 8}``, on whole nodes that
        the scheduler chooses, those with ``node_labels`` or any. ``repeat``: "daily" or "weekly". From
        ``notice`` before it on, no task starts there whose end is not known. The same window again changes
        nothing; a different one of the name is refused with ``window_exists`` unless it is to ``replace``
        that, one whose end has passed with ``window_over``.
        """
        request = CreateWindow(
            name=parse_name(name, "the window's name"),
            start=start,
            duration_s=parse_timeout(duration, "duration"),
            repeat=repeat,
            nodes=None if nodes is None else parse_ids(nodes, "nodes"),
            node_labels=dict(parse_node_labels(node_labels, "node_labels")),
            all_nodes=parse_flag(all_nodes, "all_nodes"),
            resources=None if resources is None else dict(parse_amount(resources).public()),
            notice_s=parse_timeout(notice, "notice"),
            comment=comment,
            pools=None if pools is None else parse_ids(pools, "pools"),
            owners=None if owners is None else parse_ids(owners, "owners"),
            labels=None if labels is None else parse_labels(labels),
            replace=parse_flag(replace, "replace"),
            client=client_name(),
        )
        return done(self._connection, request)

    def delete_window(self, name: str) -> Result:
        """Delete a maintenance window: it does not come again, and nodes that it closes open at once. Refused
        with ``window_not_found``.
        """
        name = parse_name(name, "the window's name")
        return done(self._connection, DeleteWindow(name=name, client=client_name()))

    def list_windows(self) -> WindowsResult:
        """Return ``windows``: those that are open or to come, with the next time of each."""
        return listed(self._connection, ListWindows(), "windows", WindowsResult)

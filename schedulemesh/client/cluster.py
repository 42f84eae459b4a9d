"""The calls about nodes, strategies and the scheduler itself."""

from __future__ import annotations

from schedulemesh.api.cluster import GetAbout, GetStats, ListStrategies
from schedulemesh.api.nodes import CordonNode, ListExternalUsage, ListNodeNames, ListNodes
from schedulemesh.api.results import Result
from schedulemesh.client.arguments import public_calls
from schedulemesh.client.asking import details, done, listed
from schedulemesh.client.listings import (
    AboutResult,
    ExternalUsageResult,
    NodeNamesResult,
    NodesResult,
    Stats,
    StrategiesResult,
)
from schedulemesh.client.overview import print_overview
from schedulemesh.client.scheduler_object import SchedulerObject
from schedulemesh.domain.names import parse_name
from schedulemesh.domain.numbers import parse_flag


@public_calls
class ClusterCalls(SchedulerObject):
    """A scheduler object that shows and changes the cluster."""

    def stats(self) -> Stats:
        """Return the counts of ``get_preemption_stats``, the pools by name, and how many agents and nodes
        there are.
        """
        return details(self._connection, GetStats(), Stats)

    def strategies(self) -> StrategiesResult:
        """Return ``strategies``: those that the scheduler was made with, how often each was called, failed
        and was slow, and why it is ``disabled`` (empty: it is not).
        """
        return listed(self._connection, ListStrategies(), "strategies", StrategiesResult)

    def cluster_snapshot(self) -> NodesResult:
        """Return ``nodes``: every living node with its total and free resources, what Ray work that is not
        the scheduler's uses, whether it is cordoned, and its agents.
        """
        return listed(self._connection, ListNodes(), "nodes", NodesResult)

    def node_names(self) -> NodeNamesResult:
        """Return ``nodes``: what every living node is called: its ``node_id``, ``short_id``, ``host`` and
        ``address``, and the ``name`` that people are shown.
        """
        return listed(self._connection, ListNodeNames(), "nodes", NodeNamesResult)

    def external_usage(self) -> ExternalUsageResult:
        """Return ``jobs``: the Ray jobs that hold or wait for something that is not the scheduler's, by
        namespace; what they hold altogether and by ``nodes``, and who they are. Ray is asked now. What plain
        Ray tasks hold is not in it, because Ray keeps no record of that.
        """
        return listed(self._connection, ListExternalUsage(), "jobs", ExternalUsageResult)

    def cordon_node(self, node_id: str, cordoned: bool = True) -> Result:
        """Close a node to new agents, or open it again (False). Agents on it stay."""
        request = CordonNode(
            node_id=parse_name(node_id, "node_id"), cordoned=parse_flag(cordoned, "cordoned")
        )
        return done(self._connection, request)

    def dashboard(self) -> None:
        """Print an overview: the supervisor, the pools with their quota, and the last preemptions."""
        print_overview(self._connection, self.about())

    def about(self) -> AboutResult:
        """Return what serves this scheduler: ``name``, ``namespace``, ``detached``, ``version`` (of
        ScheduleMesh), ``started_at`` (when its supervisor began to serve), ``node_id``, ``pid``,
        ``journal`` (its address), ``epoch`` (one more with each life of the supervisor), ``time`` (its
        clock), the address of the HTTP API as ``http`` (None: there is none, or it does not serve yet), and
        how many ``pools``, ``agents``, ``running_tasks`` and ``queued_tasks`` there are.
        """
        return details(self._connection, GetAbout(), AboutResult)

"""The simulator: runs the production engine on traces of jobs, in virtual time.

``simulate`` runs one trace on one cluster under one policy; ``compare`` runs several policies, each also on
copies of the trace with shifted submissions. Nothing here starts a process or waits.
"""

from schedulemesh.sim.alone import delays_alone
from schedulemesh.sim.cluster import NodeKind, read_nodes
from schedulemesh.sim.compare import Comparison, compare, jittered
from schedulemesh.sim.jobs import Job
from schedulemesh.sim.node_changes import NodeChange, read_node_changes
from schedulemesh.sim.policy import Policy, read_policy
from schedulemesh.sim.report import Report, reported
from schedulemesh.sim.simulation import SimulationResult, simulate
from schedulemesh.sim.timeline import Timeline, timeline
from schedulemesh.sim.timing import Timing
from schedulemesh.sim.traces import read_trace
from schedulemesh.sim.variants import with_load, with_savable

__all__ = [
    "Comparison",
    "Job",
    "NodeChange",
    "NodeKind",
    "Policy",
    "Report",
    "SimulationResult",
    "Timeline",
    "Timing",
    "compare",
    "delays_alone",
    "jittered",
    "read_node_changes",
    "read_nodes",
    "read_policy",
    "read_trace",
    "reported",
    "simulate",
    "timeline",
    "with_load",
    "with_savable",
]

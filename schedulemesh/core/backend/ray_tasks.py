"""Plain tasks that wait in Ray for room: how many ask for what, and whose they are.

Ray's raylets report the requests that they queue by what they ask for, without saying whose they are. Whose
they are is in the events of tasks, which their drivers and workers report to the GCS about a second later, of
which some may be lost, and which can be switched off. So the first say how much waits, the second for whom.
"""

from __future__ import annotations

import functools
import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import ray
from ray._private.gcs_utils import create_gcs_channel
from ray.core.generated import common_pb2, gcs_service_pb2

from schedulemesh.core.backend.ray_internals import Shape, shape_of
from schedulemesh.core.backend.ray_resources import resources_of
from schedulemesh.runtime.cluster_usage import RayHolder

logger = logging.getLogger(__name__)

#: The most tasks whose owners Ray is asked for, and the most equal requests that are told apart: more would
#: fill any node.
_MOST_EVENTS, _MOST_ALIKE = 1000, 100
#: Seconds that Ray may take to answer.
_ANSWERS_S = 5.0
#: How Ray calls a task that waits for room.
_WAITS = "PENDING_NODE_ASSIGNMENT"


def waiting_tasks(queued: Mapping[Shape, int], actors: Iterable[Shape]) -> Iterator[RayHolder]:
    """The plain tasks among queued requests, as a holder per job and shape. ``actors``: what actors ask for
    that wait. What waits for room in a placement group, and what asks for nothing, is left out.
    """
    of_tasks = Counter(queued)
    of_tasks.subtract(Counter(actors))
    waiting_by_shape = {
        shape: n for shape, n in of_tasks.items() if n > 0 and resources_of(dict(shape))
    }
    owners = _owners() if waiting_by_shape else Counter()
    for shape, count in waiting_by_shape.items():
        jobs = {job_id: n for (job_id, owned_shape), n in owners.items() if owned_shape == shape}
        for job_id, owner_count in (jobs or {"": count}).items():
            amount = resources_of(dict(shape))
            yield RayHolder(
                ray_id=f"tasks of {job_id} for {amount}",
                is_group=False,
                are_tasks=True,
                job_id=job_id,
                name="",
                namespace="",
                waiting=(amount,) * min(owner_count, count, _MOST_ALIKE),
            )


def _owners() -> Counter[tuple[str, Shape]]:
    """How many plain tasks of each job wait with each shape, as far as that is known."""
    request = gcs_service_pb2.GetTaskEventsRequest(limit=_MOST_EVENTS)
    filters = request.filters
    filters.exclude_driver = True
    filters.state_filters.add(state=_WAITS, predicate=gcs_service_pb2.FilterPredicate.EQUAL)
    try:
        answer = _service(ray.get_runtime_context().gcs_address).GetTaskEvents(
            request, timeout=_ANSWERS_S
        )
    except Exception:  # gRPC's own errors; how much waits is known without this answer
        logger.warning("whose the tasks are that wait in Ray is not known", exc_info=True)
        return Counter()
    return Counter(
        (event.job_id.hex(), shape_of(event.task_info.required_resources))
        for event in answer.events_by_task
        if _is_plain(event.task_info)
    )


def _is_plain(task: Any) -> bool:
    """Whether a task is none that creates an actor, and waits for no room in a placement group."""
    in_group = bool(task.placement_group_id.strip(b"\xff"))
    return task.type == common_pb2.TaskType.NORMAL_TASK and not in_group


@functools.lru_cache(maxsize=1)
def _service(address: str) -> Any:
    from ray.core.generated.gcs_service_pb2_grpc import TaskInfoGcsServiceStub

    return TaskInfoGcsServiceStub(create_gcs_channel(address))

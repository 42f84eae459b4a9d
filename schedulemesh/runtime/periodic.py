"""What a supervisor does again and again while it runs: observe the cluster, and check its agents."""

from __future__ import annotations

import asyncio
import logging

from schedulemesh.errors import JournalError
from schedulemesh.runtime.backend import BackendError
from schedulemesh.runtime.command_queue import POLL_S
from schedulemesh.runtime.request_service import RequestService
from schedulemesh.runtime.running import Running

logger = logging.getLogger(__name__)


async def observe_for_ever(running: Running) -> None:
    """Compare the state with the cluster every ``monitor_interval_s`` seconds."""
    while True:
        await asyncio.sleep(running.settings.monitor_interval_s)
        try:
            await running.monitor.observe()
            running.executor.references.release_unused(running.reactor.state)
        except (JournalError, BackendError) as error:
            logger.warning("cluster monitor: %s", error)


async def check_health_for_ever(requests: RequestService, every_s: float) -> None:
    """Check the health of all agents every so many seconds."""
    while True:
        await asyncio.sleep(every_s)
        try:
            await requests.ensure_health(2 * POLL_S)
        except (JournalError, BackendError) as error:
            logger.warning("health: %s", error)

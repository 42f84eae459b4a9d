"""Repeats calls to the backend without whose result the executor cannot continue."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar

from schedulemesh.runtime.backend import BackendError

logger = logging.getLogger(__name__)

Value = TypeVar("Value")

#: Seconds between two attempts: doubled from the first to the last.
_RETRY_S, _RETRY_MAX_S = 0.5, 10.0


async def until_answered(what: str, call: Callable[[], Awaitable[Value]]) -> Value:
    """The result of a call whose failure leaves unknown what is true, so no failure can be reported instead.

    A call that fails is repeated after a pause, until it is answered. ``what``: the call, for the log.
    """
    wait_s = _RETRY_S
    while True:
        try:
            return await call()
        except BackendError as error:
            logger.warning("%s failed: %s; trying again in %g s", what, error, wait_s)
        except Exception:  # logged: what it has done is as unknown as after an expected failure
            logger.exception("%s failed; trying again in %g s", what, wait_s)
        await asyncio.sleep(wait_s)
        wait_s = min(2 * wait_s, _RETRY_MAX_S)

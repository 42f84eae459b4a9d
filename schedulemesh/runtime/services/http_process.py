"""The process that serves a scheduler's HTTP API, as the supervisor knows it."""

from __future__ import annotations

import logging

import msgspec

from schedulemesh.config.auth import AuthSettings
from schedulemesh.config.settings import SchedulerSettings
from schedulemesh.protocol.agents import pack
from schedulemesh.runtime.backend import Backend, BackendError

logger = logging.getLogger(__name__)


class HttpProcess:
    """Starts and ends the process, and knows its address. It runs on while the supervisor is restarted."""

    def __init__(self, backend: Backend, settings: SchedulerSettings, key: bytes) -> None:
        self._backend, self._settings = backend, settings
        self._auth = AuthSettings(process_key=key)
        #: Where it listens; None: there is none, or it has not said so yet.
        self.url: str | None = None

    def start(self) -> None:
        """Start it if the settings ask for one, unless it runs. A failure concerns nothing else."""
        settings = self._settings
        if settings.http is None:
            return
        try:
            http_settings = msgspec.structs.replace(settings.public(), auth=self._auth)
            self._backend.start_http(pack(http_settings), settings.name, settings.namespace)
        except BackendError as error:
            logger.warning("the HTTP API cannot be started: %s", error)

    async def end(self) -> None:
        """End it, and have it remove its file."""
        if self._settings.http is None:
            return
        try:
            await self._backend.end_http(self._settings.name, self._settings.namespace)
        except BackendError as error:
            logger.warning("the process of the HTTP API was not ended: %s", error)

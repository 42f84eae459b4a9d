"""The token with which this process calls a scheduler, and the file of a token that was made here."""

from __future__ import annotations

import getpass
import logging
import os
import socket
from collections.abc import Mapping

import msgspec
import ray

from schedulemesh.config.auth import AuthSettings
from schedulemesh.config.discovery import Discovered, forget, found, write
from schedulemesh.config.http import home_folder
from schedulemesh.config.settings import SchedulerSettings
from schedulemesh.errors import NotAllowedError
from schedulemesh.protocol.credentials import (
    ENVIRONMENT_VARIABLE,
    Credential,
    hash_of,
    new_process_secret,
    new_secret,
    parse_secret,
)

logger = logging.getLogger(__name__)


def token_of(
    settings: SchedulerSettings, token: object, environ: Mapping[str, str] = os.environ
) -> str:
    """The secret of the token for a scheduler: the one that was given, the one in the environment, or the
    one in the scheduler's file on this machine; empty: there is none.

    A file that others may read or change is not used. Raises InvalidRequestError for what is no token.
    """
    if token is not None:
        return parse_secret(token, "token")
    named = environ.get(ENVIRONMENT_VARIABLE)
    if named:
        return parse_secret(named, ENVIRONMENT_VARIABLE)
    try:
        file = found(home_folder(environ), settings.namespace, settings.name)
    except NotAllowedError as error:
        # It matters only where the scheduler asks for a token, and then that is refused.
        logger.warning("%s", error)
        return ""
    return "" if file is None else file.token


def credential_of(token: str) -> bytes:
    """What this process sends with its calls."""
    context = ray.get_runtime_context()
    credential = Credential(
        token=token,
        job_id=context.get_job_id(),
        node_id=context.get_node_id(),
        pid=os.getpid(),
        user=f"{_user_name()}@{socket.gethostname()}",
    )
    return msgspec.msgpack.encode(credential)


def _user_name() -> str:
    """The user that this process runs as; in a container it may have no name."""
    try:
        return getpass.getuser()
    except (KeyError, OSError, ImportError):
        return f"uid-{os.getuid()}"


class FirstToken:
    """The token with which a new scheduler begins: the one that this process has, or one that is made here
    and written to the scheduler's file, so that commands and jobs of the same user find it.
    """

    def __init__(self, settings: SchedulerSettings, token: str) -> None:
        made = settings.auth.required and not token
        self.secret = new_secret() if made else token
        auth = AuthSettings(
            required=settings.auth.required,
            first_token_hash=hash_of(self.secret) if settings.auth.required else "",
            process_key=new_process_secret(),
        )
        #: What the supervisor is to be created with.
        self.settings = msgspec.structs.replace(settings, auth=auth)
        self._file = _file(settings, self.secret) if made else None

    def write(self) -> None:
        """Write the file, before the scheduler exists: a crash in between would lock everybody out."""
        if self._file is not None:
            write(home_folder(os.environ), self._file)

    def forget(self) -> None:
        """Remove the file: the scheduler does not accept the token."""
        if self._file is not None:
            forget(home_folder(os.environ), self._file)


def forget_token(settings: SchedulerSettings, credential: bytes) -> None:
    """Remove the file of a scheduler that has ended, if this token was written to it when it began."""
    token = msgspec.msgpack.decode(credential, type=Credential).token
    forget(home_folder(os.environ), _file(settings, token))


def _file(settings: SchedulerSettings, token: str) -> Discovered:
    """The file of a scheduler without an HTTP API."""
    return Discovered(name=settings.name, namespace=settings.namespace, url="", token=token, pid=0)

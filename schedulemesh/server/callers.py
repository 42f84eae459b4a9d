"""Who sends a request over HTTP, and what they may do."""

from __future__ import annotations

import msgspec

from schedulemesh.protocol.roles import LEAST_ROLE, Role
from schedulemesh.server.problems import Problem


class Caller(msgspec.Struct, frozen=True, kw_only=True):
    """The holder of a token."""

    #: The name of the token.
    name: str
    role: Role
    #: The address that the request came from.
    address: str = ""

    @property
    def client(self) -> str:
        """How the scheduler records who asked."""
        return f"{self.name}@{self.address}"

    def check_class(self, request: type) -> None:
        """Raise Problem where the role may not make requests of this class."""
        if not self.role.may(request):
            raise Problem(
                403,
                "not_allowed",
                f"token {self.name!r} has the role {self.role.value}; this call needs the role "
                f"{LEAST_ROLE[request].value}",
            )

    def check(self, request: msgspec.Struct) -> None:
        """Raise Problem where this request is not allowed."""
        self.check_class(type(request))

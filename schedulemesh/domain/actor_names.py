"""The names that the processes of agents have in Ray, by which they are found again."""

from __future__ import annotations

import msgspec

from schedulemesh.domain.agent import AgentSpec, gang_of
from schedulemesh.domain.payloads import GangPayload, LeasePayload


class ActorName(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """A named actor in Ray."""

    namespace: str = ""
    name: str = ""

    @property
    def address(self) -> tuple[str, str]:
        """(namespace, name)."""
        return self.namespace, self.name


class ActorNames(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """Names the actors of one scheduler."""

    scheduler: str = ""
    #: That of the scheduler, and of its agents where the user's Ray options name no other.
    namespace: str = ""

    @property
    def mark(self) -> str:
        """How the names begin that the user has not chosen. The scheduler's name is quoted, so that the mark
        of one scheduler is never the beginning of another's.
        """
        quoted = self.scheduler.replace("%", "%25").replace(":", "%3A")
        return f"schedulemesh:{quoted}:"

    def of_process(self, process_name: str, incarnation: int) -> ActorName:
        """The actor of a process for which the user has chosen no name."""
        name = f"{self.mark}{process_name}#{incarnation}"
        return ActorName(namespace=self.namespace, name=name)

    def of_agent(
        self, spec: AgentSpec, incarnation: int, *, is_extra: bool = False
    ) -> tuple[ActorName, ...]:
        """The actors of a gang's members in the order of their ranks; of another agent that of its process
        if the user has chosen its name. A member's name is the gang's with its rank, also that of an extra
        member of an elastic gang.
        """
        if isinstance(spec.payload, LeasePayload):
            return ()
        options = msgspec.json.decode(spec.options, type=_NamingOptions)
        namespace = options.namespace or self.namespace
        if not isinstance(spec.payload, GangPayload):
            member = gang_of(spec.name) if is_extra else None
            chosen = options.name if member is None else f"{options.name}-{member[1]}"
            return (ActorName(namespace=namespace, name=chosen),) if options.name else ()
        if not options.name:
            return tuple(self.of_process(name, incarnation) for name in spec.process_names)
        names = (f"{options.name}-{rank}" for rank in range(len(spec.bundles)))
        return tuple(ActorName(namespace=namespace, name=name) for name in names)


class _NamingOptions(msgspec.Struct, frozen=True, gc=False):
    """The Ray options that choose a name."""

    name: str = ""
    namespace: str = ""

"""The members of a gang from the arguments of a call: equal replicas, or members that each differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypedDict

import msgspec

from schedulemesh.client.arguments import check_constructor
from schedulemesh.core.agent.ranks import rank_arguments
from schedulemesh.domain.containers import as_elements, as_named_items
from schedulemesh.domain.names import parse_name
from schedulemesh.domain.numbers import parse_count
from schedulemesh.domain.payloads import GangPayload, MemberSpec
from schedulemesh.domain.placement import MAX_BUNDLES
from schedulemesh.domain.resources import Resources, parse_resources, sum_of
from schedulemesh.domain.user_data import UserClass, UserValue
from schedulemesh.errors import InvalidRequestError


class GangMember(TypedDict, total=False):
    """One member of a gang, or several equal ones. What it does not give is that of the call."""

    resources: Mapping[str, object]
    actor_class: UserClass
    actor_args: Sequence[UserValue]
    actor_kwargs: Mapping[str, UserValue]
    #: How many members there are like this one.
    replicas: int


class Gang(msgspec.Struct, frozen=True, kw_only=True):
    """What a call asks for in a gang."""

    #: The arguments of each member in the order of ranks; empty: all have those of the call.
    members: tuple[dict[str, object], ...] = ()
    size: int
    strategy: str = ""
    same_label: str = ""
    #: Of an elastic gang: the most members, of whom ``size`` are its core; 0: it is not elastic.
    most: int = 0

    def spec(self, members: tuple[MemberSpec, ...] = ()) -> GangPayload:
        """The gang with what its members have instead of the agent's own."""
        return GangPayload(
            strategy=self.strategy,
            same_label=self.same_label,
            members=members,
            replicas=self.most,
        )


#: What a member may give.
_MEMBER = sorted(GangMember.__annotations__)


def parse_gang(arguments: Mapping[str, object]) -> Gang | None:
    """The gang that the arguments of a call describe; None: a single agent. Raises InvalidRequestError."""
    replicas, members = arguments.get("replicas"), arguments.get("members")
    placement, same_label = arguments.get("placement"), arguments.get("same_label")
    if replicas is None and members is None:
        least = arguments.get("min_replicas")
        others = (("placement", placement), ("same_label", same_label), ("min_replicas", least))
        for name, value in others:
            if value is not None:
                raise InvalidRequestError(f"{name} is for gangs; say replicas=N, too")
        return None
    if arguments.get("bundles") is not None:
        raise InvalidRequestError(
            "a gang has one bundle for each member; leave bundles out, and say what each member takes"
        )
    if replicas is not None and members is not None:
        raise InvalidRequestError("members says how many there are; leave replicas out of the call")
    strategy = "" if placement is None else parse_name(placement, "placement").upper()
    label = "" if same_label is None else parse_name(same_label, "same_label")
    gang_members = () if members is None else _members(members)
    size = parse_count(replicas, "replicas", 1) if members is None else len(gang_members)
    most = size
    if arguments.get("min_replicas") is not None:
        size = parse_count(arguments["min_replicas"], "min_replicas", 1, most)
        if arguments.get("task_id") is None:
            raise InvalidRequestError("min_replicas is for gangs with a task; submit one")
    if size > MAX_BUNDLES:
        raise InvalidRequestError(f"a gang has up to {MAX_BUNDLES} members, not {size}")
    return Gang(
        members=gang_members,
        size=size,
        strategy=strategy,
        same_label=label,
        most=most if most > size else 0,
    )


def _members(members: object) -> tuple[dict[str, object], ...]:
    fields_of_members: list[dict[str, object]] = []
    for index, member in enumerate(as_elements(members, "members", "a list of dicts")):
        fields = as_named_items(member, f"members[{index}]", _MEMBER, "a dict")
        count = fields.pop("replicas", None)
        fields_of_members += [fields] * (1 if count is None else parse_count(count, "replicas", 1))
    if not fields_of_members:
        raise InvalidRequestError("members is empty; a gang has at least one")
    return tuple(fields_of_members)


def bundles_of(gang: Gang, resources: object) -> tuple[Resources, ...]:
    """What each member takes; ``resources``: those of the call, for members that name none."""
    member_resources = [fields.get("resources") for fields in gang.members] or [None] * gang.size
    needs = [resources if need is None else need for need in member_resources]
    if None in needs:
        raise InvalidRequestError(
            f"resources must say what each member of the gang takes; member {needs.index(None)} has none"
        )
    return tuple(map(parse_resources, needs))


def fallback_members(
    gang: Gang, resources: object, fields: Mapping[str, object], what: str
) -> tuple[Resources | None, tuple[Resources, ...]]:
    """What the members of a gang take in an alternative with these fields: in all, and each of them (None,
    and none: as in the first one). ``resources``: those of the call. Raises InvalidRequestError.
    """
    if "resources" not in fields and "replicas" not in fields:
        return None, ()
    first = bundles_of(gang, resources)
    count = fields.get("replicas")
    size = len(first) if count is None else parse_count(count, f"{what}['replicas']", 1)
    if "resources" in fields:
        each = parse_resources(fields["resources"], f"{what}['resources']")
    elif len(set(first)) == 1:
        each = first[0]
    else:
        raise InvalidRequestError(
            f"{what} has replicas, and the members of the gang differ; say their resources, too"
        )
    members = (each,) * size
    return sum_of(members), members


def check_member(cls: type, args: Sequence[UserValue], kwargs: dict[str, UserValue]) -> None:
    """Raise InvalidRequestError for a class that cannot be built as a member of a gang."""
    check_constructor(cls, args, {**kwargs, **rank_arguments(cls, args, kwargs, 0, 1)})

"""The command audit: who changed what, when, and from where."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO

import typer

from schedulemesh.cli.command import Select, Since, Target, View, command, note
from schedulemesh.cli.language import phrase
from schedulemesh.cli.output import show
from schedulemesh.cli.rows import Column, Listing, Row
from schedulemesh.cli.texts import data, local_time, moment
from schedulemesh.cli.wording import node
from schedulemesh.errors import InvalidRequestError

if TYPE_CHECKING:
    from schedulemesh.api.audit import ChangeInfo, QueryAudit
    from schedulemesh.cli.gateway import Gateway

app = typer.Typer()

#: Bytes at the end of a file in which its last line is looked for; a record is much shorter.
_LAST_BYTES = 1_000_000
#: How the line of a change begins.
_RECORD = b"{"
#: More changes than there can be.
_ALL = 1_000_000_000


def _who(row: Row) -> str:
    """Who requested a change; a name that only its process gives is marked."""
    who = str(row["who"])
    if not who:
        return phrase("cell_unknown")
    return who if row["who_verified"] else phrase("cell_unverified", who=who)


def _about(row: Row) -> str:
    request: dict[str, Any] = row["request"] or {}
    named = ("name", "pool_name", "task_id", "agent_name", "node_id", "names", "task_ids")
    subjects = [request[key] for key in named if request.get(key)]
    if isinstance(request.get("spec"), dict):
        subjects.append(request["spec"].get("name"))
    if not subjects:
        return ""
    if isinstance(subjects[0], list):
        return ", ".join(map(str, subjects[0]))
    return node(subjects[0])


def _outcome(row: Row) -> str:
    return str(row["reason"] or row["outcome"])


_CHANGES = (
    Column(heading="time", key="at", show=local_time),
    Column(heading="who", key="", show=_who),
    Column(heading="call", key="call"),
    Column(heading="about", key="", show=_about),
    Column(heading="outcome", key="", show=_outcome),
    Column(heading="number", key="number", wide=True, right=True),
    Column(heading="token", key="token", wide=True),
    Column(heading="role", key="role", wide=True),
    Column(heading="owner", key="owner", wide=True),
    Column(heading="user", key="user", wide=True),
    Column(heading="from", key="address", wide=True),
    Column(heading="request", key="request", show=data, wide=True),
    Column(heading="before", key="before", show=data, wide=True),
    Column(heading="after", key="after", show=data, wide=True),
    Column(heading="error", key="error", wide=True),
)


@command(app)
def audit(
    target: Target,
    view: View,
    select: Select,
    since: Since = None,
    who: Annotated[
        str | None, typer.Option(help="Only those with this token, or of this user@host.")
    ] = None,
    call: Annotated[
        str | None, typer.Option(help="Only those of this name, such as change_policy.")
    ] = None,
    outcome: Annotated[
        str | None, typer.Option(help="Only those that are done, refused or open.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, max=100_000, help="The last so many.")] = 50,
    append: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Append to this file as lines of JSON, the oldest first, what came after its last line. It "
            "is created where it is missing, readable by its owner only.",
        ),
    ] = None,
) -> None:
    """Show who changed what, when, and from where; changes that were refused too."""
    from schedulemesh.api.audit import ChangeInfo, QueryAudit
    from schedulemesh.api.calls import check_change

    if call is not None:
        check_change(call)
    begin = None if since is None else moment(since)
    request = QueryAudit(token=who, call=call, outcome=outcome, since=begin)
    if append is not None:
        _append(target, request, append)
        return

    def look(gateway: Gateway) -> Listing:
        rows = _changes(gateway, request, limit)
        notes = () if rows or who is None else (phrase("remark_no_change_by", who=who),)
        return Listing(
            kind="changes",
            rows=rows,
            columns=_CHANGES,
            row=ChangeInfo,
            name="number",
            notes=notes,
        )

    show(target, view, look, select)


def _changes(gateway: Gateway, request: QueryAudit, limit: int) -> list[ChangeInfo]:
    """The newest changes, the newest first."""
    from schedulemesh.api.audit import read_changes
    from schedulemesh.protocol.answers import Listed

    rows = read_changes(request, limit, lambda page: gateway.ask(page, Listed).rows)
    # A gateway raises what is refused.
    return rows if isinstance(rows, list) else []


def _append(target: Target, request: QueryAudit, path: Path) -> None:
    """Append what a file does not have yet. A change that was open when it was written stays so there."""
    import fcntl

    import msgspec

    from schedulemesh.cli.gateway import gateway_to

    try:
        with open(path, "a+b", opener=_private) as file:
            # Another one that runs at the same time would append the same.
            fcntl.flock(file, fcntl.LOCK_EX)
            last = _last_number(file)
            with gateway_to(target) as gateway:
                _check_continues(gateway, last, path)
                rows = _changes(gateway, msgspec.structs.replace(request, after=last), _ALL)
            file.writelines(msgspec.json.encode(row) + b"\n" for row in reversed(rows))
    except (OSError, msgspec.MsgspecError, KeyError, TypeError, ValueError) as error:
        raise InvalidRequestError(
            f"the changes cannot be appended to {path}: {error!r}; give a file that this command has "
            "written, or a new one"
        ) from error
    note(phrase("remark_appended", count=len(rows), path=str(path)))


def _check_continues(gateway: Gateway, last: int, path: Path) -> None:
    """Raise InvalidRequestError for a file whose last change has a number that there is not as yet."""
    from schedulemesh.api.audit import QueryAudit

    newest = next(iter(_changes(gateway, QueryAudit(), 1)), {"number": 0})["number"]
    if last > newest:
        raise InvalidRequestError(
            f"the last change in {path} has the number {last}, and the last one of this scheduler {newest}: "
            "the file is of another scheduler, or of an earlier journal; give a new file"
        )


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _last_number(file: BinaryIO) -> int:
    """The number of the change in the last line of a file; 0: it has none. A line that was cut off, as when
    the disk was full, is removed. Raises ValueError for a file of others.
    """
    import msgspec

    file.seek(max(0, file.seek(0, os.SEEK_END) - _LAST_BYTES))
    data = file.read()
    complete = data.rfind(b"\n") + 1
    if complete < len(data):
        if not data.startswith(_RECORD, complete):
            raise ValueError("its last line is no change")
        file.truncate(file.tell() - len(data) + complete)
    lines = data[:complete].splitlines()
    return int(msgspec.json.decode(lines[-1])["number"]) if lines else 0

"""Facts about changes that were requested; see ``facts``."""

from __future__ import annotations

from typing import Union

from schedulemesh.domain.audit import AuditRecord
from schedulemesh.engine.messages.fact import Fact


class ChangeReceived(Fact, tag="change_received", frozen=True, kw_only=True):
    """A change was requested; what it leads to comes after."""

    record: AuditRecord


class ChangeAnswered(Fact, tag="change_answered", frozen=True, kw_only=True):
    """The change with this number was carried out or refused."""

    number: int
    outcome: str
    reason: str = ""
    error: str = ""
    after: str = ""


AnyAuditFact = Union[ChangeReceived, ChangeAnswered]

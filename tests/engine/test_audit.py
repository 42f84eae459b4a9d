"""Changes are recorded before they are carried out, and what became of them after it."""

from __future__ import annotations

from schedulemesh.domain.audit import DONE, OPEN, REFUSED, AuditRecord
from schedulemesh.engine.messages import stimuli as s
from schedulemesh.engine.messages.audit_facts import ChangeAnswered
from tests.engine.builders import Mesh


def change(mesh, **fields):
    """A change is requested by a token."""
    record = AuditRecord(
        number=0,
        call="EnsurePool",
        token="t1",
        role="operator",
        owner="ada",
        address="10.0.0.1:40000",
        request='{"name":"p"}',
        before='{"cpu":1}',
        **fields,
    )
    mesh.handle(s.ChangeWasReceived(record=record))
    return mesh.state.audit.all()[-1].number


def test_a_change_is_open_until_it_is_answered():
    mesh = Mesh()
    number = change(mesh)
    (record,) = mesh.state.audit.all()
    assert (record.number, record.at, record.outcome) == (number, mesh.now, OPEN)
    fact = ChangeAnswered(number=number, outcome=DONE, after='{"cpu":2}')
    mesh.handle(s.ChangeWasAnswered(fact=fact))
    (record,) = mesh.state.audit.all()
    assert (record.outcome, record.after) == (DONE, '{"cpu":2}')


def test_a_refused_change_says_why_and_numbers_go_on_after_a_restart():
    mesh = Mesh()
    number = change(mesh)
    fact = ChangeAnswered(
        number=number, outcome=REFUSED, reason="not_permitted", error="viewers change nothing"
    )
    mesh.handle(s.ChangeWasAnswered(fact=fact))
    (record,) = mesh.rewritten().audit.all()
    assert (record.outcome, record.reason, record.error) == (
        REFUSED,
        "not_permitted",
        "viewers change nothing",
    )
    assert mesh.rewritten().audit.next_number == mesh.refolded().audit.next_number == number + 1

"""Rehearses what a period of a scheduler's own history would have been under another policy.

``open_history`` reads the history of a journal, ``rehearse`` runs what it recorded through the production
engine in virtual time. Under the policy that was in force the rehearsal decides what was decided then;
``Rehearsal.check`` says how far it does, ``remarks_on`` in sentences.
"""

from schedulemesh.sim.rehearsal.recording import Recording
from schedulemesh.sim.rehearsal.remarks import remarks_on
from schedulemesh.sim.rehearsal.source import open_history
from schedulemesh.sim.rehearsal.what_if import Changes, Rehearsal, rehearse

__all__ = ["Changes", "Recording", "Rehearsal", "open_history", "rehearse", "remarks_on"]

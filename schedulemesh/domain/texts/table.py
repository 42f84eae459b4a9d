"""The texts of all sentences, by code: in English and in Chinese, with the same parameters."""

from __future__ import annotations

from collections.abc import Mapping

from schedulemesh.domain.texts.change_warnings import CHANGE_WARNINGS
from schedulemesh.domain.texts.changes import CHANGES
from schedulemesh.domain.texts.command_output import COMMAND_OUTPUT
from schedulemesh.domain.texts.demo import DEMO
from schedulemesh.domain.texts.explain_lines import EXPLAIN_LINES
from schedulemesh.domain.texts.explanations import EXPLANATIONS
from schedulemesh.domain.texts.permissions import PERMISSIONS
from schedulemesh.domain.texts.refusals import REFUSALS
from schedulemesh.domain.texts.rehearsals import REHEARSALS

#: See ``domain.sentences`` for what fields may say.
TEXTS: Mapping[str, tuple[str, str]] = {
    "nothing": ("nothing", "0"),
    "in_brackets": (" ({what})", "（{what}）"),
    "others": ("others", "其他任务"),
    **EXPLANATIONS,
    **REFUSALS,
    **PERMISSIONS,
    **CHANGES,
    **CHANGE_WARNINGS,
    **EXPLAIN_LINES,
    **REHEARSALS,
    **COMMAND_OUTPUT,
    **DEMO,
}

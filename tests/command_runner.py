"""Runs commands in this process, as typer's runner does.

Typer makes all commands anew for each run, which takes longer than what most of them do; here they are made
once.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import pytest
from typer import testing
from typer.main import get_command

from schedulemesh.cli.app import app

_made_once = cache(get_command)


def run_command(words: Sequence[object], **options: Any) -> testing.Result:
    """What ``schedulemesh`` with these words has printed, and its exit code. ``options``: those of typer's
    ``CliRunner.invoke``.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(testing, "_get_command", _made_once)
        return testing.CliRunner().invoke(app, [str(word) for word in words], **options)

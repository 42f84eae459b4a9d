"""Runs rehearsals: what a period of the scheduler's own history would have been with other nodes or quotas.

One takes seconds to minutes of a processor, so it is a process of its own with the lowest priority, and only
one runs at a time. Pages show that it runs, and then its answer.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import msgspec

from schedulemesh.domain.sentences import Sentence, Text, say

#: The periods that may be rehearsed, as the command takes them.
PERIODS = ("24h", "7d", "30d")
#: Seconds that a rehearsal may take.
LIMIT_S = 300.0
#: How many answers are kept, of each token the last, and the lines of remarks that are shown.
_KEPT, _REMARKS = 50, 20
#: The lowest priority of a process.
_NICE = "19"


class RehearsalQuestion(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked."""

    period: str = PERIODS[1]
    #: So many nodes more, or less.
    nodes: int = 0
    #: The pool with another quota of GPUs; empty: none.
    pool: str = ""
    gpus: float = 0.0

    def arguments(self) -> list[str]:
        """As the command ``rehearse`` takes it."""
        quota = [f"--pool={self.pool}={self.gpus:g}"] if self.pool else []
        return [f"--since={self.period}", f"--nodes={self.nodes:+d}", *quota]


class RehearsalRun(msgspec.Struct, kw_only=True):
    """A rehearsal that runs or has ended."""

    question: RehearsalQuestion
    began: float
    #: What it found out, pool by pool; None: it runs, or failed.
    rows: list[dict[str, Any]] | None = None
    #: What it said besides, or why it failed; put into words when the page is drawn.
    remarks: Sequence[Text] = ()
    is_over: bool = False


#: Runs the command with these arguments; its status, its output and its remarks.
RunCommand = Callable[[Sequence[str]], Awaitable[tuple[int, bytes, bytes]]]


class Rehearsals:
    """Runs rehearsals one at a time, and keeps the last of each token in memory."""

    def __init__(self, run: RunCommand) -> None:
        self._run = run
        #: By the name of the token, the oldest first.
        self._runs: dict[str, RehearsalRun] = {}
        self._running: asyncio.Task[None] | None = None

    def of_token(self, token: str) -> RehearsalRun | None:
        """The last rehearsal that this token asked for."""
        return self._runs.get(token)

    def begin(
        self,
        token: str,
        question: RehearsalQuestion,
        about: Mapping[str, Any],
    ) -> bool:
        """Begin a rehearsal; False: another one runs. ``about``: which scheduler's history."""
        if self._running is not None and not self._running.done():
            return False
        run = RehearsalRun(question=question, began=time.time())
        self._runs.pop(token, None)
        self._runs[token] = run
        for old in list(self._runs)[: max(0, len(self._runs) - _KEPT)]:
            del self._runs[old]
        of_scheduler = [f"--name={about['name']}", f"--namespace={about['namespace']}"]
        command = ["--lang=en", "rehearse", *question.arguments(), *of_scheduler]
        arguments = [*command, "--codes", "--output=json", "--", about["journal"]]
        self._running = asyncio.ensure_future(self._carry_out(run, arguments))
        return True

    async def _carry_out(self, run: RehearsalRun, arguments: Sequence[str]) -> None:
        try:
            status, output, remarks = await self._run(arguments)
            lines = remarks.decode(errors="replace").splitlines()[:_REMARKS]
            run.remarks = [*map(_remark, lines)]
            if status == 0:
                run.rows = msgspec.json.decode(output, type=list[dict[str, Any]])
        except (asyncio.TimeoutError, TimeoutError):
            run.remarks = [say("rehearsal_too_long", limit=LIMIT_S)]
        except (OSError, msgspec.DecodeError) as error:
            run.remarks = [str(error)]
        finally:
            run.is_over = True


def _remark(line: str) -> Text:
    """A line of remarks: a sentence, or a text as it is, such as an error of the command."""
    try:
        return msgspec.json.decode(line, type=Sentence)
    except msgspec.DecodeError:
        return line


async def run_command(arguments: Sequence[str]) -> tuple[int, bytes, bytes]:
    """Run the command ``schedulemesh`` as a process of the lowest priority. Raises OSError, and TimeoutError
    after ``LIMIT_S``.
    """
    process = await asyncio.create_subprocess_exec(
        *("nice", "-n", _NICE, sys.executable, "-m", "schedulemesh"),
        *arguments,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        output, remarks = await asyncio.wait_for(process.communicate(), LIMIT_S)
    except BaseException:
        if process.returncode is None:
            process.kill()
            await process.wait()
        raise
    return process.returncode or 0, output, remarks

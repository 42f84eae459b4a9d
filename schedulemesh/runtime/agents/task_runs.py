"""Has agents run the tasks that run by themselves, and reports how each run ended."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

import msgspec

from schedulemesh.domain.end_reasons import TaskEndReason
from schedulemesh.domain.payloads import GangPayload
from schedulemesh.engine.messages.instructions import RunTask
from schedulemesh.engine.messages.stimuli import RunEnded
from schedulemesh.engine.state.agents import Agent
from schedulemesh.errors import JournalError
from schedulemesh.protocol.agents import (
    KeptResult,
    MessageError,
    RunOrder,
    RunReport,
    key_of,
    pack,
    unpack,
)
from schedulemesh.runtime.agents.endings import pauses
from schedulemesh.runtime.agents.gangs import processes_of
from schedulemesh.runtime.agents.process_cleanup import DEATH_S
from schedulemesh.runtime.agents.registry import Agents
from schedulemesh.runtime.agents.user_code import UserCode
from schedulemesh.runtime.reactor import Reactor

logger = logging.getLogger(__name__)

#: Bytes of a packed report beside what is kept of the run.
_REPORT_BYTES = 64 * 1024


class TaskRunner:
    """Runs tasks on their agents; the bytes of their results are stored unread."""

    def __init__(self, agents: Agents, reactor: Reactor, code: UserCode) -> None:
        self._agents = agents
        self._reactor = reactor
        self._code = code

    async def run(self, order: RunTask) -> None:
        """Run a task to its end, and report it; nothing is reported where the agent ends before.

        What fails meanwhile is tried again, because the agent runs the task once however often it is asked.
        """
        for pause_s in pauses():
            try:
                report = await self._report(order)
            except Exception:  # logged: without a report the task would never end
                logger.exception("the run of task %s is asked for again", order.task_id)
            else:
                break
            await asyncio.sleep(pause_s)
        if report is not None:
            await self._reported(order, report)

    async def report_ended(self, order: RunTask, within_s: float) -> bool | None:
        """Report a run if it has ended, and say whether it has; None: that cannot be found out in time. The
        agent is asked beside its methods, one of which may block it.
        """
        agent = self._reactor.state.agents.get(order.agent_name)
        if agent is None:
            return None
        reports = await asyncio.gather(
            *(self._ended_report(name, order, within_s) for name in agent.spec.process_names)
        )
        answered = [report for report in reports if report is not None]
        ended = [report for report in answered if report.kept or report.reason is not None]
        failed = next((report for report in ended if report.reason is not None), None)
        if failed is None and len(ended) < len(reports):
            return False if len(answered) == len(reports) else None
        report = failed or (
            _together(ended) if isinstance(agent.spec.payload, GangPayload) else ended[0]
        )
        if failed is None or await self._failed_alone(agent, within_s):
            await self._reported(order, report)
        return True

    async def _failed_alone(self, agent: Agent, within_s: float) -> bool:
        """Whether a run has failed by itself. The members of a gang also fail when one of them dies, as with
        its node: then the gang is lost, which is found out soon, and no run is reported.
        """
        if not isinstance(agent.spec.payload, GangPayload):
            return True
        return await self._agents.all_live(processes_of(self._reactor.state, agent), within_s)

    async def _ended_report(self, name: str, order: RunTask, within_s: float) -> RunReport | None:
        """The report of a process; an empty one: its run goes on. None: it does not say."""
        limit = self._reactor.result_bytes + _REPORT_BYTES
        result = await self._agents.commands.execute(
            name, order.incarnation, "report", within_s, task_id=order.task_id, limit_bytes=limit
        )
        if result is None or result.error or not result.able:
            return None
        try:
            return RunReport(kept=b"") if result.data is None else unpack(result.data, RunReport)
        except MessageError as error:
            logger.warning("the report of task %s cannot be read: %s", order.task_id, error)
            return None

    async def _reported(self, order: RunTask, report: RunReport) -> None:
        report = self._bounded(report)
        if report.reason is not None:
            logger.warning("run failed: task_id=%s error=%s", order.task_id, report.error)
        key = key_of(report.kept) if report.kept else None
        ended = RunEnded(
            task_id=order.task_id,
            agent_name=order.agent_name,
            incarnation=order.incarnation,
            result_key=key,
            reason=report.reason,
            error=report.error,
            cancelled=report.cancelled,
        )
        await self._reactor.report(ended, {} if key is None else {key: report.kept})

    async def _report(self, order: RunTask) -> RunReport | None:
        """How the run ended; None: its agent ended before."""
        try:
            arguments = await self._code.argument_bytes(order.arguments_key)
        except JournalError as error:
            return _not_run(str(error))
        agent = self._reactor.state.agents.get(order.agent_name)
        if agent is None:
            return None
        names = agent.spec.process_names
        to_host = RunOrder(
            task_id=order.task_id,
            method=order.method,
            arguments=arguments,
            limit_bytes=self._reactor.result_bytes // len(names),
        )
        if not isinstance(agent.spec.payload, GangPayload):
            return await self._agents.run(order.agent_name, order.incarnation, to_host)
        report = await self._of_gang(names, order.incarnation, to_host)
        if report is None or report.reason is None:
            return report
        return report if await self._failed_alone(agent, DEATH_S) else None

    async def _of_gang(
        self, names: Sequence[str], incarnation: int, order: RunOrder
    ) -> RunReport | None:
        """Run a task on every member of a gang: it has returned when all have, with what each returned, and
        failed as soon as one has.
        """
        runs = [asyncio.ensure_future(self._agents.run(name, incarnation, order)) for name in names]
        try:
            for run in asyncio.as_completed(runs):
                report = await run
                if report is None:
                    return None
                if report.reason is not None:
                    rank = next(i for i, r in enumerate(runs) if r.done() and r.result() is report)
                    return msgspec.structs.replace(report, error=f"rank {rank}: {report.error}")
        finally:
            for pending in runs:
                pending.cancel()
        return _together([run.result() for run in runs])

    def _bounded(self, report: RunReport) -> RunReport:
        """The report, without a result that is larger than the agent was told that it may be."""
        size, limit = len(report.kept), self._reactor.result_bytes
        if size <= limit:
            return report
        return msgspec.structs.replace(
            report,
            kept=b"",
            reason=report.reason or TaskEndReason.RESULT_TOO_LARGE,
            error=report.error or f"the result has {size} bytes; up to {limit} are kept",
        )


def _together(reports: Sequence[RunReport | None]) -> RunReport:
    """The report of a gang whose members have all returned: their results, in the order of ranks."""
    all_reports = [report for report in reports if report is not None]
    try:
        values = tuple(unpack(report.kept, KeptResult).value or b"" for report in all_reports)
    except MessageError as error:
        return _not_run(f"the result of a member cannot be read: {error}")
    return RunReport(
        kept=pack(KeptResult(members=values)),
        cancelled=any(report.cancelled for report in all_reports),
    )


def _not_run(error: str) -> RunReport:
    return RunReport(kept=b"", reason=TaskEndReason.NOT_RUN, error=error)

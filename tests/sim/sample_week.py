"""Writes examples/a_week.csv, an export of the history of a week that the engine decided in virtual time.

    python -m tests.sim.sample_week

Two teams share 32 GPUs, of which each owns half. The file is data for docs/first_analysis.md: it is written
again where the columns of an export change, and then with REWRITE_DOCS=1 what the page says about it.
"""

from __future__ import annotations

import datetime as dt
import random
import tempfile
from pathlib import Path

from schedulemesh.sim import Job, Timing
from schedulemesh.sim.policy import parse_policy
from schedulemesh.sim.simulation import BEGIN
from schedulemesh.store.history.export import job_of, write_csv
from schedulemesh.store.history.queries import Filters, History, Span
from schedulemesh.store.history.tables import history_engine
from schedulemesh.store.sql import SqlJournal
from tests.sim.recorded_load import recorded_world, written

SAMPLE = Path(__file__).parents[2] / "examples" / "a_week.csv"
MONDAY = dt.datetime(2026, 11, 2, tzinfo=dt.timezone.utc).timestamp()
HOUR_S = 3600.0


def jobs() -> list[Job]:
    """Experiments of one team in working hours, and trainings of the other at any hour."""
    draw = random.Random(33)
    made = [experiment(draw, day, number) for day in range(5) for number in range(30)]
    made += [training(draw, number) for number in range(24)]
    return sorted(made, key=lambda job: job.submit_s)


def experiment(draw: random.Random, day: int, number: int) -> Job:
    """One of the team vision."""
    return Job(
        job_id=f"experiment-{day}-{number}",
        submit_s=round((24 * day + draw.uniform(9, 18)) * HOUR_S),
        duration_s=round(min(12 * HOUR_S, draw.lognormvariate(8.4, 1.2))),
        gpus=draw.choice((1, 1, 2, 4, 8)),
        pool="vision",
        user=draw.choice(("ann", "ben", "cat")),
    )


def training(draw: random.Random, number: int) -> Job:
    """One of the team language, whose state can be saved in three cases of four."""
    return Job(
        job_id=f"training-{number}",
        submit_s=round(draw.uniform(0, 120) * HOUR_S),
        duration_s=round(draw.uniform(2, 20) * HOUR_S),
        gpus=draw.choice((4, 8, 8, 16)),
        pool="language",
        user=draw.choice(("dan", "eve")),
        savable=draw.random() < 0.75,
    )


def main() -> None:
    """Run the week, and write the file."""
    alike = {"resources": {"gpu": 16}, "cohort": "all", "on_preempted": "requeue"}
    pools = [{"name": name, **alike} for name in ("vision", "language")]
    world = recorded_world(jobs(), parse_policy({"pools": pools}), Timing(start_s=20.0))
    world.run()
    with tempfile.TemporaryDirectory() as folder:
        journal = Path(folder) / "mesh.sqlite"
        written(world, journal)
        write_csv(SAMPLE, rows(journal))


def rows(path: Path) -> list[dict[str, object]]:
    """The rows of an export, as if the week had begun on that Monday."""
    journal = SqlJournal(path, must_exist=True)
    place = journal.place()
    with history_engine(place.address).connect() as connection:
        history = History(connection, place.journal, BEGIN)
        attempts = history.attempts(Filters(), 100_000, Span(after=0))
    journal.close()
    return [
        {**job_of(a, BEGIN), "submitted_at": a["submitted_at"] - BEGIN + MONDAY} for a in attempts
    ]


if __name__ == "__main__":
    main()

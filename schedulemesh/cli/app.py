"""The command ``schedulemesh`` with all its commands, each in the module of its subject."""

from __future__ import annotations

from schedulemesh.cli import (
    agents,
    alerts,
    audit,
    cohorts,
    declared,
    doctor,
    drains,
    exec_commands,
    explain,
    history,
    jobs,
    leases,
    lifecycle,
    metrics,
    plugins,
    policy,
    pools,
    preemptions,
    queue,
    rehearse,
    session,
    simulate,
    states,
    status,
    tasks,
    tokens,
    top,
    waiting,
    windows,
)
from schedulemesh.cli.root import new_app
from schedulemesh.cli.tables import table_app

app = new_app()

_SUBJECTS = (
    status,
    top,
    pools,
    cohorts,
    agents,
    drains,
    windows,
    tasks,
    jobs,
    waiting,
    exec_commands,
    leases,
    session,
    states,
    queue,
    explain,
    preemptions,
    metrics,
    alerts,
    history,
    policy,
    declared,
    tokens,
    audit,
    plugins,
    doctor,
    lifecycle,
    simulate,
    rehearse,
)
for _subject in _SUBJECTS:
    app.add_typer(_subject.app)
app.add_typer(table_app())

"""The supervisor's process gets the priority of Ray's own, where the system permits that."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

#: Lowers the priority of this process, starts a thread, asks for Ray's priority, and prints what it got: the
#: answer, whether the system permits it, and the niceness of each thread.
STARTED_BY_RAY = """
import json, os, threading
from schedulemesh.core.backend.process_priority import take_priority_of_ray
os.nice({by})
threading.Thread(target=threading.Event().wait, daemon=True).start()
taken = take_priority_of_ray()
found = [os.getpriority(os.PRIO_PROCESS, int(tid)) for tid in os.listdir("/proc/self/task")]
try:
    os.setpriority(os.PRIO_PROCESS, 0, min(found) - {by})
    permitted = True
except PermissionError:
    permitted = False
print(json.dumps([taken, permitted, found]))
"""

#: Lowers the priority of this process, starts a thread, stands behind a supervisor, and prints the niceness
#: of each thread.
BEHIND = """
import json, os, threading
from schedulemesh.core.backend.process_priority import stand_behind_supervisor
os.nice({by})
threading.Thread(target=threading.Event().wait, daemon=True).start()
stand_behind_supervisor()
print(json.dumps([os.getpriority(os.PRIO_PROCESS, int(tid)) for tid in os.listdir("/proc/self/task")]))
"""

#: Raises the score by which the kernel chooses whom to kill, asks for that of the parent, and prints both.
SCORED = """
import json
from pathlib import Path
from schedulemesh.core.backend.process_priority import take_oom_score_of_ray
own = Path("/proc/self/oom_score_adj")
own.write_text({score!r})
print(json.dumps([take_oom_score_of_ray(), int(own.read_text())]))
"""

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has it per thread")


def started(by, code=STARTED_BY_RAY):
    """What a process printed that began with a niceness that is higher than this one's."""
    code = code.format(by=by)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def test_every_thread_gets_the_niceness_of_the_parent_where_that_is_permitted():
    own = os.getpriority(os.PRIO_PROCESS, 0)
    if own > 15:
        pytest.skip("this process is so nice that none can be nicer by 3")
    taken, permitted, found = started(3)
    assert taken == permitted
    assert set(found) == {own if permitted else own + 3}


def test_nothing_changes_where_the_parent_is_as_nice():
    taken, _, found = started(0)
    assert not taken
    assert set(found) == {os.getpriority(os.PRIO_PROCESS, 0)}


@pytest.mark.parametrize("by", [0, 19])
def test_every_thread_of_the_api_is_nicer_than_a_supervisor_as_far_as_there_is_room(by):
    own = os.getpriority(os.PRIO_PROCESS, 0)
    assert set(started(by, BEHIND)) == {min(19, min(19, own + by) + 4)}


@pytest.mark.parametrize("score", [1000, None])
def test_the_kernel_kills_it_no_sooner_than_its_parent(score):
    own = int(Path("/proc/self/oom_score_adj").read_text(encoding="ascii"))
    code = SCORED.format(score=str(own if score is None else score))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == [own < (score or own), own]

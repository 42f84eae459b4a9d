"""Random lives of a queue whose tasks may run in several ways: what holds for others holds for them, and what
was recorded, restored or found out again says the same.
"""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import rule

from tests.engine.test_queue_machine import QueueMachine, queued

#: No node has the label: a condition that holds everywhere, and one that holds nowhere.
EVERYWHERE, NOWHERE = {"zone": "!a"}, {"zone": "a"}
ways = st.fixed_dictionaries(
    {
        "node_labels": st.sampled_from([{}, EVERYWHERE, NOWHERE]),
        "fallbacks": st.sampled_from(
            [(EVERYWHERE,), (NOWHERE, EVERYWHERE), ({"takes": {"cpu": 1.0}}, EVERYWHERE)]
        ),
    }
)


class AlternativesMachine(QueueMachine):
    """Half of the tasks that join may run in several ways."""

    @rule(task=queued, how=ways)
    def queue_in_ways(self, task, how):
        # Labels choose the node, and one without amounts has the same in each way.
        more = {} if task["need"] else {"fallbacks": (NOWHERE, EVERYWHERE)}
        self.join(**{**task, "own_place": False}, **{**how, **more})


TestAlternatives = AlternativesMachine.TestCase
TestAlternatives.settings = settings(
    max_examples=int(os.environ.get("HYPOTHESIS_EXAMPLES", "30")),
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)

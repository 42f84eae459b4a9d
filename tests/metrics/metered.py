"""A mesh whose steps a recorder counts, and what the exposition of both says."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from schedulemesh.engine.state.mesh_state import MeshState
from schedulemesh.metrics import gauges
from schedulemesh.metrics.catalogue import CATALOGUE
from schedulemesh.metrics.exposition import lines
from schedulemesh.metrics.recorder import MetricsRecorder
from tests.engine.builders import Mesh


class Metered(Mesh):
    """Every step is recorded as it would be once it is durable."""

    def __init__(self, *pools, **options):
        self.recorder = MetricsRecorder(MeshState(), lambda: self.now)
        super().__init__(*pools, **options)

    def handle(self, stimulus):
        step = super().handle(stimulus)
        self.recorder(step)
        return step

    def restart(self):
        """Another supervisor's recorder begins with the state."""
        self.recorder = MetricsRecorder(self.state, lambda: self.now)

    def metrics(self):
        """Every value by the name of its line and its labels in order."""
        return values([*gauges.families(self.state), *self.recorder.families()])


def values(families):
    """What the text of these families says, read by Prometheus' own parser."""
    return parsed("".join(lines(families)))


def parsed(text):
    """Every value of an exposition by the name of its line and its label values."""
    return {
        (_name(family, sample), *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def _name(family, sample):
    """The name in the text; the parser adds ``_total`` to counters that do not have it."""
    return family.name if family.name in CATALOGUE and family.type == "counter" else sample.name

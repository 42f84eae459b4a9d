"""The text is what Prometheus reads, whatever names and values are in it."""

from __future__ import annotations

import asyncio
import math

import pytest
from prometheus_client.parser import text_string_to_metric_families

from schedulemesh.metrics import catalogue as c
from schedulemesh.metrics.exposition import lines, written
from schedulemesh.metrics.values import Counter, Histogram, Sample, Window, family_of


@pytest.mark.parametrize(
    "name", ["池-生产", 'a "quoted" pool', "back\\slash", "two\nlines", "{a=b}", "\\n", "é,=} 1"]
)
def test_every_name_is_read_back(name):
    (family,) = text_string_to_metric_families(
        "".join(lines([(c.QUEUE_DEPTH, [Sample((name,), 2)])]))
    )
    (sample,) = family.samples
    assert (sample.name, sample.labels, sample.value) == (
        "schedulemesh_queue_depth",
        {"pool": name},
        2,
    )


@pytest.mark.parametrize("value", [0, 1, -3.5, 1e-9, 1e300, 2**53 + 0.0, math.inf, -math.inf])
def test_every_value_is_read_back(value):
    (family,) = text_string_to_metric_families(
        "".join(lines([(c.QUEUE_DEPTH, [Sample(("p",), value)])]))
    )
    assert family.samples[0].value == value


def test_no_number_is_told_as_such():
    (line,) = list(lines([(c.QUEUE_DEPTH, [Sample(("p",), math.nan)])]))[1:]
    assert line.endswith(" NaN\n")


def test_a_histogram_is_cumulative_and_an_observation_on_a_bound_is_below_it():
    kept = Histogram(c.QUEUE_WAIT)
    for seconds in (0.1, 0.2, 5.0, 1e6):
        kept.observe(("p",), seconds)
    (family,) = text_string_to_metric_families("".join(lines([family_of(kept)])))
    found = {s.labels.get("le", s.name): s.value for s in family.samples}
    assert (found["0.1"], found["1.0" if "1.0" in found else "1"], found["+Inf"]) == (1, 2, 4)
    assert found["schedulemesh_queue_wait_seconds_count"] == 4
    assert found["schedulemesh_queue_wait_seconds_sum"] == pytest.approx(1_000_005.3)


def test_a_metric_without_samples_is_left_out():
    assert list(lines([family_of(Counter(c.SUBMISSIONS)), (c.TASKS, [None])])) == [""]


def test_other_work_gets_its_turn_while_the_text_is_written():
    async def story():
        turns = 0

        async def count():
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        counting = asyncio.ensure_future(count())
        samples = [Sample((f"pool-{n}",), n) for n in range(20_000)]
        text = await written([(c.QUEUE_DEPTH, samples)])
        counting.cancel()
        assert text == "".join(lines([(c.QUEUE_DEPTH, samples)]))
        return turns

    assert asyncio.run(story()) > 5


def test_a_window_forgets_what_is_older_than_its_span():
    window = Window(300.0)
    for second in range(0, 1000, 10):
        window.add(float(second), 1.0, 2.0)
    first, second = window.sums(990.0)
    assert first == pytest.approx(30, abs=1)
    assert second == 2 * first
    assert window.sums(5_000.0) == (0.0, 0.0)

"""Fragmentation: F and its gradient, held against the plain sum of the paper."""

from __future__ import annotations

import math
import random
from fractions import Fraction

import pytest

from schedulemesh.domain.resources import UNIT
from schedulemesh.engine.state.fragmentation import Workload, typical_kinds
from tests.engine.builders import amount

KINDS = {(1.0, 0.5): 50, (4.0, 1.0): 30, (8.0, 2.0): 10, (2.0, 0.0): 9, (64.0, 8.0): 1}


def workload(kinds=KINDS):
    found = Workload()
    found.learn({(round(cpu * UNIT), round(gpu * UNIT)): n for (cpu, gpu), n in kinds.items()})
    return found


def plain_f(kinds, cpu, devices):
    """The sum over typical kinds of frequency times the idle GPU-milli that the kind cannot use."""
    typical = typical_kinds(kinds)
    total = Fraction(0)
    for (need_cpu, need_gpu), n in typical.items():
        idle = sum(Fraction(d) for d in devices)
        piece, count = min(need_gpu, 1.0), max(1, int(need_gpu))
        enough = [d for d in devices if need_gpu and d >= piece]
        fits = need_gpu and len(enough) >= count and cpu >= need_cpu
        usable = sum(Fraction(d) for d in enough) if fits else 0
        total += Fraction(n, sum(typical.values())) * (idle - usable) * 1000
    return total


def plain_score(kinds, cpu, devices, need_cpu, need_gpu):
    before = plain_f(kinds, cpu, devices)
    options = []
    if 0 < need_gpu < 1:
        for i, free in enumerate(devices):
            if free >= need_gpu:
                options.append([*devices[:i], free - need_gpu, *devices[i + 1 :]])
    else:
        left, count = list(devices), int(need_gpu)
        for i, free in enumerate(left):
            if count and free == 1.0:
                left[i], count = 0.0, count - 1
        options.append(left)
    after = [plain_f(kinds, cpu - need_cpu, left) for left in options]
    return max(int(100 / (1 + math.exp(-float(before - f) / 1000))) for f in after)


def test_the_score_is_the_paper_s():
    dice = random.Random(3)
    for _ in range(300):
        devices = [dice.choice((0.0, 0.25, 0.5, 0.75, 1.0)) for _ in range(dice.randrange(1, 9))]
        cpu = dice.choice((1.0, 4.0, 8.0, 32.0))
        need = dice.choice([(1.0, 0.0), (1.0, 0.25), (1.0, 0.5), (1.0, 1.0), (1.0, 2.0)])
        if need[1] >= 1 and devices.count(1.0) < need[1]:
            continue
        if max(devices) < min(need[1], 1.0):
            continue
        units = [round(d * UNIT) for d in devices]
        given = workload().score(round(cpu * UNIT), units, amount(cpu=need[0], gpu=need[1]))
        assert given == plain_score(KINDS, cpu, devices, *need), (cpu, devices, need)


def test_the_typical_kinds_are_the_most_frequent_ones_with_95_per_cent():
    counts = {(1, 1): 50, (2, 1): 45, (3, 1): 4, (4, 1): 1}
    assert list(typical_kinds(counts)) == [(1, 1), (2, 1)]
    assert list(typical_kinds({(2, 0): 1, (1, 0): 1})) == [(1, 0), (2, 0)]
    assert typical_kinds({}) == {}


def test_a_share_goes_where_least_becomes_useless():
    half = workload({(1.0, 1.0): 9, (1.0, 0.5): 1})
    units = [UNIT, UNIT // 2, UNIT]
    assert half.best_device(8 * UNIT, units, amount(cpu=1, gpu=0.5))[1] == 1


def test_an_empty_workload_likes_all_alike():
    assert Workload().score(UNIT, [UNIT], amount(cpu=1, gpu=1)) == 50


def test_admissions_renew_the_typical_kinds_now_and_then():
    found = Workload()
    versions = []
    for _ in range(200):
        found.note(amount(cpu=1, gpu=1))
        versions.append(found.version)
    assert versions[0] == 1
    assert 5 < versions[-1] < 20
    assert found.counts == {(UNIT, UNIT): 200}


def test_counts_are_halved_so_that_the_mix_follows_the_times(monkeypatch):
    monkeypatch.setattr("schedulemesh.engine.state.fragmentation._MOST_COUNTED", 10)
    found = Workload()
    found.note(amount(cpu=2))
    for _ in range(10):
        found.note(amount(cpu=1))
    assert found.counts == {(UNIT, 0): 5}


@pytest.mark.parametrize("gpu", [0, 0.5, 2])
def test_a_remembered_f_is_the_same(gpu):
    found = workload()
    need = amount(cpu=1, gpu=gpu)
    first = found.score(8 * UNIT, [UNIT] * 4, need)
    assert found.score(8 * UNIT, [UNIT] * 4, need) == first

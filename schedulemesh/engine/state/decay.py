"""The mean of an amount over time in which the past counts less: half as much after each half-life."""

from __future__ import annotations

from schedulemesh.domain.resources import Resources


def decayed_mean(
    mean: dict[str, float], mean_at: float, amount: Resources, now: float, half_life_s: float
) -> dict[str, float]:
    """The mean until ``now``, by kind, of what had this mean until ``mean_at`` and has been ``amount`` since;
    with a half-life of 0 the amount itself.
    """
    if half_life_s <= 0:
        return {kind: float(units) for kind, units in amount.items()}
    past = 0.5 ** ((now - mean_at) / half_life_s) if now > mean_at else 1.0
    decayed = {}
    for kind, units in mean.items():  # faster than a comprehension before Python 3.12
        decayed[kind] = units * past
    for kind, units in amount.items():
        decayed[kind] = decayed.get(kind, 0.0) + units * (1.0 - past)
    return decayed

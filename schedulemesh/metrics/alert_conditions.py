"""Conditions of alert rules: how their values are computed from samples, and how PromQL spells them.

Both come from one declaration, so an alert fires in the scheduler and in Prometheus alike. Conditions compare
what is true at one moment; how long it has to be true belongs to the rule.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Union

import msgspec

#: Names and values of labels, sorted by name.
LabelSet = tuple[tuple[str, str], ...]
#: The samples of one moment: by metric, the value of each set of labels.
Samples = Mapping[str, Mapping[LabelSet, float]]


def selector(metric: str, *matchers: str) -> str:
    """The selector of a metric in PromQL, by both of its names: that of the scheduler's own endpoint, and the
    one of Ray's exporter, which begins with ``ray_``.
    """
    return "{" + ",".join((f'__name__=~"(ray_)?{metric}"', *matchers)) + "}"


class Comparator(str, Enum):
    """How a value is compared with the threshold, as PromQL spells it."""

    ABOVE = ">"
    AT_LEAST = ">="
    BELOW = "<"


_COMPARE: Mapping[Comparator, Callable[[float, float], bool]] = {
    Comparator.ABOVE: operator.gt,
    Comparator.AT_LEAST: operator.ge,
    Comparator.BELOW: operator.lt,
}


class Value(msgspec.Struct, frozen=True, kw_only=True):
    """The samples of a metric with these labels."""

    metric: str
    labels: LabelSet = ()

    @property
    def metrics(self) -> tuple[str, ...]:
        """The metrics that it reads."""
        return (self.metric,)

    def values(self, samples: Samples) -> Mapping[LabelSet, float]:
        """The value of each set of labels."""
        required = set(self.labels)
        values = samples.get(self.metric, {})
        # With thousands of agents a copy would take longer than the comparison.
        if not required:
            return values
        return {labels: value for labels, value in values.items() if required <= set(labels)}

    def promql(self) -> str:
        """The expression."""
        return selector(self.metric, *(f'{name}="{value}"' for name, value in self.labels))


class Ratio(msgspec.Struct, frozen=True, kw_only=True):
    """The sum of metrics divided by another one, for each set of labels that all of them have."""

    parts: tuple[str, ...]
    whole: str

    @property
    def metrics(self) -> tuple[str, ...]:
        """The metrics that it reads."""
        return (*self.parts, self.whole)

    def values(self, samples: Samples) -> dict[LabelSet, float]:
        """The value of each set of labels."""
        parts = [samples.get(name, {}) for name in self.parts]
        ratios = {}
        for labels, divisor in samples.get(self.whole, {}).items():
            total = 0.0
            for part in parts:
                value = part.get(labels)
                if value is None:
                    break
                total += value
            else:
                ratios[labels] = _divided(total, divisor)
        return ratios

    def promql(self) -> str:
        """The expression."""
        return f"({' + '.join(map(selector, self.parts))}) / {selector(self.whole)}"


Expression = Union[Value, Ratio]


class Condition(msgspec.Struct, frozen=True, kw_only=True):
    """A comparison of an expression with a threshold."""

    expression: Expression
    comparison: Comparator
    threshold: float

    def holds_for(self, samples: Samples) -> dict[LabelSet, float]:
        """The sets of labels for which it holds, with their values."""
        holds = _COMPARE[self.comparison]
        values = self.expression.values(samples)
        return {labels: value for labels, value in values.items() if holds(value, self.threshold)}

    def promql(self) -> str:
        """The expression that has a value where the condition holds."""
        return f"{self.expression.promql()} {self.comparison.value} {_number(self.threshold)}"


def _number(value: float) -> str:
    """A finite number with all its digits."""
    return str(int(value)) if value.is_integer() and abs(value) < 1e15 else repr(value)


def _divided(value: float, divisor: float) -> float:
    """The quotient as IEEE 754 defines it, also by zero."""
    if divisor:
        return value / divisor
    return math.copysign(math.inf, value) if value else math.nan

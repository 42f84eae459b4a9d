"""A processor on which only what a test says is computed."""

from __future__ import annotations


class Processor:
    """A processor whose time is what was computed on it."""

    def __init__(self):
        self.seconds = 0.0

    def clock(self):
        return self.seconds

    def compute(self, seconds):
        self.seconds += seconds

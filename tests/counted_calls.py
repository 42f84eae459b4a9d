"""The cost of a piece of work as a number of calls, which is the same on every machine."""

from __future__ import annotations

import sys


def calls_of(work, besides=None):
    """What it returns, and how many functions of Python it calls. ``besides``: a function that is counted,
    but not what it calls, because that depends on what threads do meanwhile.
    """
    count, inside = 0, False
    left_out = None if besides is None else besides.__code__

    def note(frame, event, _argument):
        nonlocal count, inside
        count += event == "call" and not inside
        if frame.f_code is left_out:
            inside = event != "return"

    sys.setprofile(note)
    try:
        value = work()
    finally:
        sys.setprofile(None)
    return value, count

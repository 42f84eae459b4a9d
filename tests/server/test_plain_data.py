"""Loading plain data takes no more memory and time than its bytes account for."""

from __future__ import annotations

import contextlib
import pickle
import resource
from collections import OrderedDict, deque
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from fractions import Fraction
from pathlib import Path, PurePosixPath
from uuid import UUID

import pytest

from schedulemesh.client.pickling import NotPlainError, load_plain


class Evil:
    """Calls something when it is loaded."""

    def __init__(self, call, *arguments):
        self.call, self.arguments = call, arguments

    def __reduce__(self):
        return self.call, self.arguments


@contextlib.contextmanager
def little_memory():
    """One GB more than this process has."""
    _, most = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + 2**30, most))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (most, most))


LARGE = 10**13


@pytest.mark.parametrize(
    "data",
    [
        pickle.dumps(Evil(bytearray, LARGE)),
        pickle.dumps(Evil(set, range(LARGE))),
        pickle.dumps(Evil(frozenset, range(LARGE))),
        pickle.dumps(Evil(deque, range(LARGE))),
        pickle.dumps(Evil(SyntaxError, "x", range(LARGE))),
        pickle.dumps(Evil(Fraction, "1e999999999")),
        pickle.dumps(Evil(Fraction, Decimal("1e999999999"))),
        # One text of 1 MB of which 200 copies are made.
        pickle.dumps([Evil(bytearray, text) for text in [b"x" * 1_000_000] * 200]),
        b"\x80\x05\x96" + LARGE.to_bytes(8, "little") + b"x.",
        b"\x80\x05\x8e" + LARGE.to_bytes(8, "little") + b"x.",
    ],
)
def test_few_bytes_do_not_become_much_memory(data):
    with little_memory(), pytest.raises((NotPlainError, pickle.UnpicklingError, EOFError)):
        load_plain(data)


def called(name, *numbers):
    """The opcodes of a call of a class of Python with three numbers."""
    arguments = b"".join(pickle.LONG1 + b"\x08" + n.to_bytes(8, "little") for n in numbers)
    return b"\x8c\x08builtins\x8c\x05" + name + b"\x93" + arguments + b"\x87R"


@pytest.mark.parametrize("target", [b"]", b"\x96\x01" + b"\0" * 7 + b"x"])
@pytest.mark.parametrize("form", [b"%bs.", b"(%bu."])
def test_a_slice_does_not_become_a_range(target, form):
    entry = called(b"slice", 0, 1, 1) + called(b"range", 0, LARGE, 1)
    with little_memory(), pytest.raises(NotPlainError, match="in a form"):
        load_plain(b"\x80\x05" + target + form % entry)


def test_a_number_under_which_a_value_is_remembered_takes_no_memory():
    # The unpickler of C would take 32 GB for it.
    with little_memory():
        assert load_plain(b"\x80\x02Nr\xff\xff\xff\x7f.") is None


def test_a_class_is_not_changed():
    data = b"\x80\x04\x8c\x07pathlib\x8c\x0dPurePosixPath\x93N}\x8c\x04nameK\x01s\x86b."
    with pytest.raises(NotPlainError, match="changes a class"):
        load_plain(data)


@pytest.mark.parametrize("protocol", range(3, 6))
def test_plain_data_of_every_protocol_is_loaded(protocol):
    shared = ["a", "b"]
    value = {
        "bytes": (b"x" * 300, bytearray(b"yz")),
        "sets": [{1, 2}, frozenset("ab"), deque([1, 2], maxlen=5), range(LARGE), OrderedDict(a=1)],
        "numbers": [Fraction(-3, 4), Decimal("1.5"), 2**300, 1.5, 1 + 2j, None, True],
        "times": [datetime(2026, 1, 2, tzinfo=timezone.utc), timedelta(seconds=3)],
        "others": [slice(1, 2), UUID(int=5), PurePosixPath("/a/b"), [shared, shared]],
    }
    assert load_plain(pickle.dumps(value, protocol)) == value
    error = load_plain(pickle.dumps(ValueError("x", range(3)), protocol))
    assert (type(error), error.args) == (ValueError, ("x", range(3)))

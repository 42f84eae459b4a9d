"""Moving the parts of a tensor by a plan: elements are never converted on the way."""

import numpy as np
import pytest

from schedulemesh.dispatch import ParallelLayout, Shard, Sharding, apply_plan, assemble, plan
from schedulemesh.errors import InvalidRequestError

PAIR = ParallelLayout.of(dp=2)
ROWS, COLUMNS = Sharding.of(PAIR, dp=0), Sharding.of(PAIR, dp=1)


@pytest.mark.parametrize("destination", [ROWS, COLUMNS], ids=["in one piece", "in two"])
@pytest.mark.parametrize(
    ("dtypes", "said"),
    [
        (("i4", "f8"), "source rank 1 sent numpy float64; expected is numpy int32"),
        (("f8", "i4"), "source rank 1 sent numpy int32; expected is numpy float64"),
        (("U3", "U10"), "source rank 1 sent numpy <U10; expected is numpy <U3"),
    ],
)
def test_parts_of_another_dtype_are_refused(dtypes, said, destination):
    move = plan(ROWS, destination, (4, 4))
    with pytest.raises(InvalidRequestError, match=said):
        apply_plan(move, [np.zeros((2, 4), dtype) for dtype in dtypes])


@pytest.mark.parametrize("turned", [False, True])
def test_parts_of_another_library_are_refused(turned):
    torch = pytest.importorskip("torch")
    parts = [np.zeros((2, 4)), torch.zeros(2, 4, dtype=torch.float64)]
    with pytest.raises(
        InvalidRequestError, match=r"sent (torch|numpy) .*expected is (torch|numpy)"
    ):
        apply_plan(plan(ROWS, COLUMNS, (4, 4)), parts[::-1] if turned else parts)


def test_what_is_padded_must_hold_the_padding():
    padded = Sharding.of(PAIR, dp=Shard(0, "pad"), pad_value=-1)
    move = plan(Sharding.of(PAIR), padded, (3,))
    assert apply_plan(move, [np.arange(3)] * 2)[1].tolist() == [2, -1]
    with pytest.raises(InvalidRequestError, match="pad_value=-1 for an array of uint8"):
        apply_plan(move, [np.arange(3, dtype="u1")] * 2)
    with pytest.raises(InvalidRequestError, match="pad_value=-1 for an array of uint8"):
        assemble(plan(Sharding.of(PAIR), padded, (1,)), 1, [], np.arange(1, dtype="u1"))

"""Types of values that belong to users: ScheduleMesh transports and stores them without looking inside.

A signature names one of these where a value of any type is right. Everywhere else a signature says what it
takes and returns.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

#: A payload, argument, result, metric or saved state of user code.
UserValue = Any
#: A class of the user's, plain or decorated with ``@ray.remote``.
UserClass = Any
#: An instance of the user's class.
UserObject = Any
#: A function or method of user code.
UserFunction = Callable[..., Any]
#: A NumPy array or a PyTorch tensor; neither library is imported to find out which.
UserArray = Any

"""FunctionAgent: the agent of a task that is a plain function."""

from __future__ import annotations

import asyncio
import inspect

from schedulemesh.domain.user_data import UserFunction, UserValue


class FunctionAgent:
    """Calls one function with the arguments that it is built with."""

    def __init__(
        self,
        name: str,
        labels: dict[str, str],
        function: UserFunction,
        /,
        *args: UserValue,
        **kwargs: UserValue,
    ) -> None:
        self.name = name
        self.labels = labels
        self._function, self._args, self._kwargs = function, args, kwargs

    def run(self) -> UserValue:
        """What the function returns; a coroutine function is run to its end."""
        value = self._function(*self._args, **self._kwargs)
        return asyncio.run(value) if inspect.iscoroutine(value) else value

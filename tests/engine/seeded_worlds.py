"""The command line of the random worlds that are told by their seeds."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Protocol


class World(Protocol):
    """A random world."""

    def run(self) -> object:
        """Let it happen. Raises AssertionError where something is not as documented."""


def run_worlds(world: Callable[[int], World]) -> None:
    """Run as many worlds as the command line says, from its seed on, until one fails; its seed is printed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--worlds", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    for seed in range(arguments.seed, arguments.seed + arguments.worlds):
        try:
            world(seed).run()
        except Exception:
            print(f"world {seed}")
            raise
    print(f"{arguments.worlds} worlds, no violation")

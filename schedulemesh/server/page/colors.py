"""The colour of each pool, the same on every screen."""

from __future__ import annotations

from collections.abc import Iterable
from zlib import crc32

#: Colours in the style: ``color-0`` and so on.
COLORS = 8


def colors_of(pools: Iterable[str], former: Iterable[str] = ()) -> dict[str, int]:
    """The number of the colour of each pool: one that follows from its name; or, of those that exist, the
    next one that no older pool has. So pools that come later change no colour, nor does what a screen shows.

    ``pools``: those that exist, the oldest first; ``former``: others, which the history names.
    """
    colors: dict[str, int] = {}
    for name in pools:
        taken = set(colors.values())
        following = ((_of_name(name) + number) % COLORS for number in range(COLORS))
        colors[name] = next((one for one in following if one not in taken), _of_name(name))
    return {**{name: _of_name(name) for name in former}, **colors}


def _of_name(name: str) -> int:
    return crc32(name.encode()) % COLORS

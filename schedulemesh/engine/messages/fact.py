"""The base of all facts; see ``facts``, where they are described and listed."""

from __future__ import annotations

import msgspec


class Fact(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """Base of all facts. The tag of each is explicit, so that renaming a class changes nothing stored."""

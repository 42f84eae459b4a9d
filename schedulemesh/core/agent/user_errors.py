"""Errors of user code as text, made without running more of that code than Python needs.

An exception object of user code never leaves the process that raised it: unpickling it runs code of its
class.
"""

from __future__ import annotations

import traceback

from schedulemesh.protocol.agents import writable

#: Frames of a traceback that are shown, the last ones.
_FRAMES = 20


def error_text(error: BaseException) -> str:
    """The traceback of an exception from the first frame that is neither the host's own nor Ray's."""
    try:
        return _traceback(error)
    except BaseException:  # noqa: BLE001  # a text of user code raised; what is left is its type
        return f"an exception of type {type.__repr__(type(error))} that cannot be shown"


def _traceback(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    product_frames = [
        i for i, frame in enumerate(frames) if "/schedulemesh/core/" in frame.filename
    ]
    lines = traceback.format_list(
        frames[product_frames[-1] + 1 if product_frames else 0 :][-_FRAMES:]
    )
    return writable("".join([*lines, *traceback.format_exception_only(error)]).strip())

"""``python -m schedulemesh`` is the command ``schedulemesh``."""

from __future__ import annotations

from schedulemesh.cli.entry import main

main()

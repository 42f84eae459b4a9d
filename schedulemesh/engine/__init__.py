"""The engine: a deterministic state machine that makes all decisions.

It uses no Ray, clock, randomness, I/O, threads or logging. ``README.md`` in this folder describes the step
and the modules.
"""

"""Explains single tasks: why one waits, where one runs, by whom one was evicted."""

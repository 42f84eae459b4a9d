"""Scheduling strategies as plugins: their loading, and the watch over calls that never return."""

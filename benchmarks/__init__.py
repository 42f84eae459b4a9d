"""Benchmarks: ``python -m benchmarks`` runs all of them and prints a table."""

"""Paths that the documents promise."""

"""Documented import paths; the modules only re-export."""

"""The supervisor's hands."""

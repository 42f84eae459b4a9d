"""Alerts: which are raised, who receives them, and their delivery."""

"""Agents, tasks and placement groups after admission."""

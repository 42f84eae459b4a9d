"""The processes of agents: how they start, run tasks, are commanded, observed and ended."""

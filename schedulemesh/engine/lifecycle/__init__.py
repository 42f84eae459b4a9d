"""The lifecycle of agents, tasks and placement groups after admission: start, eviction, end, recovery."""

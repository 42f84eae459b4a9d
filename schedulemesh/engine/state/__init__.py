"""The engine's state: quota ledger, nodes, placement groups, agents, tasks, and snapshots of them."""

"""Frozen value types that all other packages use: resources, labels, pools, agents, tasks, reasons."""

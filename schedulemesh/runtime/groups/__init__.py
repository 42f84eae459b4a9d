"""Placement groups: those of pools, of single agents with GPUs and of leases, and the warm hosts in them."""

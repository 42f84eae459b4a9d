"""Preemption: which tasks may be evicted and in what order (``rules``), and the search for victims."""

"""Preemption: which tasks may be evicted (``rules``), in what order (``candidates``), and the search."""

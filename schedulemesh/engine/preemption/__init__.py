"""Who may be evicted, and who is."""

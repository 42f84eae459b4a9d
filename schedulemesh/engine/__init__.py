"""The decisions: a deterministic state machine without Ray, clock, chance, disk or thread."""

"""The history: what became of every task, kept in tables of its own after the journal has forgotten it."""

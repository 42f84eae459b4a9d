"""The journal in use: recovery from it, its snapshots, and what Ray's own store knows beside it."""

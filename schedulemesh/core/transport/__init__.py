"""How values travel between processes."""

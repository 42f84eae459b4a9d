"""Which node, device and placement group."""

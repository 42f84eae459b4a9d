"""What runs in the process of a caller."""

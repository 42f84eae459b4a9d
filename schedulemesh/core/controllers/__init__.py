"""What runs in the caller's process."""

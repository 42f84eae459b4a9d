"""What runs as Ray actors of its own."""

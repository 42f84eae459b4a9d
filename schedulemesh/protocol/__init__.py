"""Messages between clients, supervisor and agents."""

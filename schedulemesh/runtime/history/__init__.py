"""The history of a running supervisor: what is written of durable steps, and why tasks wait."""

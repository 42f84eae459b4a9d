"""Ray, behind the protocol that the runtime knows."""

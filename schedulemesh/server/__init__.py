"""The HTTP API: an application that answers from a gateway to the supervisor; it knows nothing of Ray."""

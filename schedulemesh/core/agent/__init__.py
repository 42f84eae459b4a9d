"""Code that runs in an agent's process: the host of the user's object, its control channel, metrics."""

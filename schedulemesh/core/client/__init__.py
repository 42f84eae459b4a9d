"""Code that runs in the caller's process: ``RayScheduler``, requests to the supervisor, results."""

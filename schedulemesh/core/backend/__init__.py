"""The Ray backend: implements with Ray what the runtime needs of a cluster."""

"""The cluster as it is observed: nodes, what has died or appeared in Ray, and requests for more nodes."""

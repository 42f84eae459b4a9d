"""The calls of a scheduler object, over any connection to its supervisor; imports no Ray."""

"""Serialization of user code and arrays that are sent between processes."""

"""The command line ``schedulemesh``."""

"""Configuration as validated values; files and environment variables are read here and nowhere else."""

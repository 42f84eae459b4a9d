"""The wishes: validated values; files and environment become values here and nowhere else."""

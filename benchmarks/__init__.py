"""What ScheduleMesh costs, measured: ``python -m benchmarks`` runs everything and prints a table."""

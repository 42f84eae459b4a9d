"""Ray jobs: what this scheduler's claim, use and leave behind, and what other work holds and waits for."""

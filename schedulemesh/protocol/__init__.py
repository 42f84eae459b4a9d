"""Messages between clients, supervisor and agents: requests, answers, and what agents send and receive."""

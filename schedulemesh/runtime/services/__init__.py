"""What answers calls: one service for each subject of ``schedulemesh.api``, and what they share."""

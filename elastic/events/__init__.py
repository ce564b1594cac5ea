"""What a run records, as it happens. Training imports this, and nothing of those who read it."""

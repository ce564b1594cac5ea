"""What became of a run, drawn from its events afterwards. Imports `events`, and nothing of training."""

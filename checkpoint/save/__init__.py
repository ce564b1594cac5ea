"""From a state in memory to a commit: in the foreground or beside training, by one process or by a group of ranks."""

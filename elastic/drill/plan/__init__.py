"""What is to go wrong: the command line, drawing from a seed, and the plan that comes of it. Values only."""

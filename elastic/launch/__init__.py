"""How a worker was started, and the command line."""

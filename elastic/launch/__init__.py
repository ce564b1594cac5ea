"""`elastic run`: a node's agent, the processes that it starts, and torchrun's flags."""

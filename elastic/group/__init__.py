"""A view's process group: formed, used for exact sums, severed. `run.py` decides when."""

"""A view's process group: formed, used for exact sums, severed. loop/view_group.py decides when."""

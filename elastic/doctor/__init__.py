"""`elastic doctor`: looks whether this machine has what a run needs, and can use the run's URL.

command   what is looked at, in which order, and the answer
finding   what one look found, and what to do about it
machine   Python, torch, devices, memory, /dev/shm, open files, the launcher
network   the address that others find this node by, its ports, and whether it reaches the others
storage   what a run does at its URL, once; and whose clock is right

Each look does what a run would do, by the run's own code where it has any: a list of known causes would miss the next
one.
"""

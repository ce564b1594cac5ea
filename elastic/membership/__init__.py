"""Who takes part: the hub that decides views, its rules and messages, and the worker's end of them.

hub         decides all views, with the rules beside it:
rules       who is in the next view, in which order, and when a run stands still
leaving     may a worker leave?
endings     is a worker replaced, or does the run end? Of kills: kills
stalls      who hangs?
messages    what is said, as types; wire: as lines
live        a worker's end of the channel to its agent
progress    what a worker does, in memory that its agent reads
environment as which worker a process was started
rendezvous  how workers find each other under plain torchrun, and missing: who of them is lost
"""

"""The workers of a node, as their agent has them.

node_worker     one of them: its process, what it is started with, and how it is ended
starter         a worker in this slot becomes a process
start_times     where a start's time goes

death_watch     a death is heard before the memory is gone
watch           a worker's record is looked at, and one that is stuck is killed
sightings       what is seen there, and for how long one is let be
memory          what the kernel's out-of-memory killer took

logs            where their output goes
shown_failures  an exception is shown once, however many meet it
"""

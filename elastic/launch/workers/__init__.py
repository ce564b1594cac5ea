"""The workers of a node, as their agent has them.

node_worker     one of them: its process, what it is started with, and how it is ended
replica_world   where the workers of one replica meet, if it has several
group_store     where all do, if torch.distributed's default group forms; and what torchrun would tell a worker
starter         a worker in this slot becomes a process
start_times     where a start's time goes

death_watch     a death is heard before the memory is gone
watch           a worker's record is looked at, and one that is stuck is killed
memory          what the kernel's out-of-memory killer took

logs            where their output goes, and which exceptions are shown at length
"""

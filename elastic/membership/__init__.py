"""Who takes part: the hub that decides views, its rules and messages, and the worker's end of them.

hub          decides all views: which workers are in them, who may come, go, or is replaced, and when a run ends
succession   the hub is lost, or nodes are: may those who are left go on, and what does the next hub know?
worker       a worker's end: the channel to its agent, and how a group is formed
rules        what a hub decides by, without what it knows. Pure but for what they remember
messages     what is said, as types, and as lines

view         the list of workers that all of this is about
environment  what a launcher tells a worker; exit_statuses: what a worker and an agent say by theirs
launchers    which rank a process is. Pure
progress     what a worker does, in memory that its agent reads; stalls: who hangs, by that. Pure
hub_file     where newcomers find the hub; written_hub: what is believed of that
signal_pipe  signals, for whoever waits for something else as well; forked_children: what those do at them
"""

"""What belongs to a drill on this machine, and what was left on it: processes, memory, files, descriptors. Linux.

processes  which belong to a drill, and an end to all of them; hosting: where a drill starts those of nodes
lifeline   ends them when the drill itself is gone
holdings   what does a worker hold of its machine? leftovers: what did a launch leave there?
disk       a small disk, which can be full or read-only
"""

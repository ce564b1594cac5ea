"""From a commit to a state in memory, to another tool's files, or to what differs: nothing is believed unverified.

integrity   which checkpoint is the newest that is whole? Are commits as they were written?
reader      reads a commit: the manifest, every object, then the tree
objects     a commit's data objects, whole or in hash chunks
into_state  the newest checkpoint into a state, by one process; group: by several ranks together
apply       a tree into live objects: all is matched first; fill: how they are filled; cast: which tensors may become
            another dtype; aliases: what shares memory
loaded      what a load gives back
stream      a commit's tensors one at a time; diff: what differs between two commits
"""

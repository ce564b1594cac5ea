"""From a commit to a state in memory, to another tool's files, or to what differs: nothing is believed unverified.

newest      which checkpoint is the newest that is whole?
reader      reads a commit: the manifest, every object, then the tree; verify: only whether it is as it was written
objects     a commit's data objects, whole or in hash chunks; pieces: of tensors, out of these
into_state  the newest checkpoint into a state, by one process; group: by several ranks together
apply       a tree into live objects: all is matched first; cast: which tensors may become another dtype; aliases: what
            shares memory
loaded      what a load gives back
stream      a commit's tensors one at a time; diff: what differs between two commits
"""

"""What a run was made with, beside its checkpoints: enough to run it again, or to say why that gave something else.

schema        every field: its type, and what it means
recorder      the coordinator's hand: collects and writes, in a thread, whatever happens to it
collect       from a worker's run to a manifest, part by part; what cannot be had is absent, with the reason
arguments     the arguments of `Run`, as JSON
source        the script, and its repository's commit and changes
packages      what is installed, as a lock file
machine       python, torch, processor, GPUs, container
files         where they lie in the run's storage, and how a launch is added
differences   two manifests compared: what decides bits, what may, what does not
command       `elastic manifest`
"""

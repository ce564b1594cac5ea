"""A view's process group: formed, used for exact sums, aborted. loop/view_group.py decides when.

form             the group; nccl: on GPUs; sockets: which connections are its own
watch            a peer is gone: the group is aborted
fingerprint      what a rank is about to do travels ahead of it

tree             in which order contributions are added; hierarchy: and where, if ranks share hosts
flat_sum         one flat tensor, summed over ranks: treesum, or hierarchical_sum across hosts
replica_mesh     torch's own mesh, over the workers of one replica, for scripts; replica_group: what these agree on
warm_memory      the memory of sums, handed on from view to view
gradients        a step's, summed while the last backward pass runs; partial_sums: what a rank adds; bucket_queue: when
                 what it added leaves; layout: where each lies; backward_end: is a backward pass over?
sharded_gradients  likewise of a sharded model, unit by unit
sums             the small numbers of a step, and each rank's requests
buffers          what becomes of them in a step; buffer_rules: by which rule; buffer_layout, foreach_buffers, snapshot:
                 how they lie, what most take, together, and as they were when the step began
"""

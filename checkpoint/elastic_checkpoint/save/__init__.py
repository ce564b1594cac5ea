"""From a state in memory to a commit: in the foreground or beside training, by one process or by a group of ranks.

pipeline    a save from its plan to its commit; readiness: can all ranks save beside training now?
ranks       who saves: one process by itself; group: the ranks of a group
planner     which tensors lie in which shards, and the draft of the manifest
arena       shared memory that a state is copied into; staging copies it; copying: by a thread or a GPU, while training
            goes on
resources   an arena and a writer process that are ready; writer: that process
in_flight   the saves under way; handle: of one of them
commit      data first, counted, then the manifest
"""

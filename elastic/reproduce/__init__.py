"""A run made again elsewhere, and one of its steps computed again: from its manifest, its record and its checkpoints.

command          `elastic reproduce`
replay_command   `elastic replay`
source_tree      the script at its commit, in a temporary worktree; without git, the copy that the manifest keeps
launch           its arguments, its variables, an environment of its lock file, its process
observer         has the run live elsewhere
replay_observer  shows what the shares of one step come to, as it is computed again
verdict          both records, step by step, and what explains the first difference
"""

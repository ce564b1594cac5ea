"""Training scripts in other people's style, which know nothing of elastic: each goes on from checkpoints of its own.

    torchrun --nproc-per-node=N FILE FOLDER [SECONDS a step]

FOLDER is where it saves. Rank 0 prints its world's size as it begins, each step's loss, and the loss at the end.
"""

"""Who may say that this node is taken: a class each, in a file of its own.

source    what each of them is; registry: which there are
metadata  what clouds have in common, and their service; azure, ec2, gcp
slurm     the end of the job's allocation
file      a file that is there; command: one that is run again and again; command_output: what it prints
"""

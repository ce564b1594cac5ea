"""The fork server of a node, which has imported what the script does, and from which workers are forked.

process     its life, from its imports to its last fork
messages    what it and the agent say to each other
top_imports  which of the script's statements it may run
importing   what it has done that forks must not share
generators  their random generators
preloaded   what it has loaded as a fork of the agent, and where a script would notice
"""

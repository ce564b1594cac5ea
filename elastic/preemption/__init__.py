"""Notices: word that this node must leave soon, or may have to, from wherever it comes.

notice           what one is, by when, and as a line of text
sources          who may say so, one class each; setting: which of them are watched; watcher: asks them
firmware         whose machine is this?
signals          SIGTERM, SIGUSR1 and Ctrl-C as notices; process_notices: with the node's, for one process
loader_processes DataLoader's, which stay at a signal to everybody as what else is forked does
preemption       `elastic.Preemption`, for loops of one's own
"""

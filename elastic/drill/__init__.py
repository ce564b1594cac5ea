"""Runs with faults on purpose, judged by what they did.

faults      which there are, at which moments; what users import
plan        the command line, drawing from a seed, the plan of a drill
inject      carries it out, in the workers and beside them
hosts       whole hosts on this machine, in namespaces, and what happens to them and to the cables between
judge       did the run keep its promises?
machine     which processes, memory and descriptors are a drill's, and what is left of them
report      what people read: while it runs, at its end, and where in their script the reason may be
environment what the processes of a drill's run are told; folder: how they let each other know what has happened
cluster     one run in a drill; pytest_plugin makes it a fixture, and drilled_tests says what became of it
watched_run the same while it runs; end: what became of it, and is it launched again?
location    where runs live; interruption: how a drill ends on a signal
both_runs   what `elastic drill` does (command): a run without faults, one with them, and the findings; check_command:
            what `elastic check` does, by the same
torchrun    drills of scripts that enter no run: what do faults do to them?
"""

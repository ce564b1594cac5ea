"""Runs with faults on purpose, judged by what they did.

faults      which there are, at which moments; what users import
plan        the command line, drawing from a seed, the plan of a drill
inject      carries it out, in the workers and beside them
hosts       whole hosts on this machine, in namespaces, and what happens to them and to the cables between
judge       did the run keep its promises?
machine     which processes, memory and descriptors are a drill's, and what is left of them
report      what people read: while it runs, at its end, and where in their script the reason may be
environment what the processes of a drill's run are told, and what is in no file; folder: what is in one
cluster     one run in a drill; pytest_plugin makes it a fixture, and failed_test says what became of it
watched_run the same while it runs; launch_end, end: of one launch, and of the last
location    where runs live; undisturbed_ends: the ends of those without faults, made once
both_runs   what `elastic drill` does (command): a run without faults, one with them, and the findings; check_command:
            what `elastic check` does, by the same
interruption  how a drill ends on a signal
"""

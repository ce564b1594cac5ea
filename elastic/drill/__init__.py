"""Runs that are hurt on purpose and judged by what they did.

faults      which there are (kinds), at which moments; what users import
planning    the command line, drawing from a seed, the plan
striking    carries it out, in the workers and beside them
judging     did the run keep its promises?
machine     which processes, memory and descriptors are a drill's, and what is left of them
telling     what people are told
cluster     one run under the hands of a drill; pytest_plugin makes it a fixture
both_runs   what `elastic drill` does (command): a run without faults, one with them, and the findings
"""

"""Between two steps: what the exchange agreed on, and what the script asks of all workers there.

boundary        save, leave, stop or regroup, on every worker
on_coordinator  what one worker does for all
evaluation      a function's sums over a dataset, each example exactly once
"""

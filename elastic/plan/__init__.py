"""What a run should cost, before and while it runs: formulas, what machines did, and a model of runs on them.

cadence         how often to save; save_rules, what a script asks for
communication   what an all-reduce takes; scaling, what that makes of more workers, and of V
trace           machines that come and go, as they were recorded (traces/) or drawn
simulation      a run on such a trace, under one of the policies; figures, the measured times that they rest on
job, estimate   what is to be trained, and what that takes and costs; memory, what a worker holds of it
plan_command, simulate_command  `elastic plan` and `elastic simulate`; arguments, units: what they read; plot
measure         what a step takes here: measure_worker in each process, and measured_step once it has a model

It knows of nothing that trains: the loop asks it, and not the other way round.
"""

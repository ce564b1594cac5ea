"""What a script keeps that the run was not handed: lost with a worker, and in a loop over batches of each worker's own.

looks               when it is looked for
script_variables    where it is looked for
other_modules       a module of the script's own that changes
kept_copies         copies of the run's weights that it takes while it trains: told of
loop_variables      what its loop keeps from turn to turn: told of; loop_source, loop_turn, loop_names: how that is seen
other_averages      an average of weights that is no module
other_loaders       a DataLoader that is read on from body to body
other_optimizers    one that is made in the loop, and has no effect
wrapped_optimizers  what steps the run's optimizer, and counts
"""

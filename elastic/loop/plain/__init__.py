"""The loop as people have it, over batches: it knows of no steps, and its own code is the update.

loop        `for batch in run.batches()`
step        a step of such a loop
update      the script steps its optimizers itself: which of its calls count
schedule    and its schedulers
loss_means  over what is a loss a mean? asked of the first batches
"""

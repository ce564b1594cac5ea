"""The loop as people have it, over batches: it knows of no steps, and its own code is the update.

loop        `for batch in run.batches()`
step        a step of such a loop
update      the script steps its optimizers itself: which of its calls count
schedule    and its schedulers
first_losses  is the loss a mean over examples? asked of the first batches
mean_over     over what is it a mean?
"""

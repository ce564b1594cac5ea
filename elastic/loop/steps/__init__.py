"""A step, from its shares to its update.

current_step  the engine: this worker's shares, and the exchange that completes them
reading       how its batches are read, and what the shares add to it
checked_shares  what is passed for nothing, for the cross-check
step_note     what is noted of it, for whoever resumes there
script_step   what a script may ask of its step, in either loop
step          a step as a script takes it: `for batch in step`; that of the other loop is plain/step.py
update        what an exact gradient is made of: opened, computed, closed, and the step committed
bad_steps     the loss or the gradients are no numbers, or far off: stop, skip, or go back to a save
not_finite    without on_bad=, the first that are no numbers are told of
"""

"""The training loop: what one worker does from joining a run to leaving it. `elastic.Run` is its public face.

    session              what a worker holds while it is in a run, opened in order and given back in reverse
    context              what all of them share
    run_state            what is applied, and what was agreed on since
    phases               what the worker is doing, said to its agent

    view_group           the view it is in, its rank there, and the group that it shares with the others
    restorer             where a view's state comes from: peers that hold it, or storage
    transfer             who lacks the state, and how those who hold it send it
    background_transfer  the weights and what is kept beside them, while those who send them compute

    loop                 steps, one after the other, and the script's own code between them
    step_in_hand         this worker's shares, and the exchange that completes them
    script_step          what a script may ask of its step, in either loop
    step                 a step as a script takes it: `for batch in step`
    plain_loop           a loop that knows of no steps: `for batch in run.batches()`
    plain_step           a step of such a loop
    assignment           which rank computes which shares, and in which order their sums are added
    exchange             gradients, buffers and sums of one step, together
    first_loss           is the loss a mean? asked of a plain loop's first batch; mean_over: over how many targets?

    rehearsal            does a body depend on what it has changed itself? asked once, of a process's first share
    other_modules        one of the script's own that changes is refused; script_variables: where it is looked for
    other_averages       so is an average of weights that is no module
    wrapped_optimizers   as is what steps the run's optimizer, and counts

    update               what an exact gradient is made of: opened, computed, closed, and the step committed
    other_loaders        a DataLoader of the script's own, read on from body to body, is refused
    own_update           the same where the script steps its optimizers itself
    own_schedule         and its schedulers
    bad_steps            the loss or the gradients are no numbers, or far off: stop, skip, or go back
    rollback             to which save, and how every rank gets it

    boundary             between two steps: what the exchange agreed on happens, on every worker
    on_coordinator       what one worker does there for all
    evaluation           a function's sums over a dataset, each example exactly once
    recovery             a collective failed: into the next view, or to this process's end
    departure            how a worker leaves
    leave_deadline       and where no boundary comes before its machine goes

    saver                the coordinator's hand on the run's storage
    under_way            a save that is not known to be committed
    save_schedule        when the next save is due
    save_duration        how long it will take
    shared_save          where all nodes leave, all upload it
    vain_uploads         those that come too late for the run's claims, again and again
    late_reading         a claim that a node could not read as it came
    compile_cache        what torch compiles goes with the run, as it comes (arriving)
    compiled_storage     as objects in its storage (compiled_object), for which sealed vouches
    compiled_room        and which of them go when there are too many
    hub_notice           where storage says that the hub is, for those who come by the run's URL
    portable             one instruction set on machines of several kinds

All of them read one `Context`, which does not change. What changes is published by who owns it: the place in the view
by `ViewGroup`, where the run stands by `RunState`, what the worker is doing by `Phases`.
"""

"""The training loop: what one worker does from joining a run to leaving it. `elastic.Run` is its public face.

    loop           steps, one after the other, and the script's own code between them
    session        what a worker holds while it is in a run, opened in order and given back in reverse
    context        what all of them share
    run_state      what is applied, what was agreed on since, and what a worker asks of all
    phases         what the worker is doing, said to its agent
    view_group     the view it is in, its rank there, and the group that it shares with the others
    assignment     which rank computes which shares, and in which order their sums are added
    gradient_sync  gradients, buffers and sums of one step, summed over the ranks together
    replica_check  do all ranks hold the same, and are they set alike?
    cross_check    does a share give the same bits wherever it is passed?
    disagreement   two workers gave different bits for a share: what is said, and what follows
    verdict        which workers are wrong then
    script_variables  what the script's loop can name, for the words of an error
    recovery       a collective failed: into the next view, or to this process's end
    curves         what the script logs, and who writes it
    portable       one instruction set on machines of several kinds

    steps          a step, from its shares to its update, in either loop
    plain          a loop that knows of no steps: `for batch in run.batches()`
    between_steps  what the exchange agreed on happens, on every worker
    leaving        how a worker leaves
    restoring      where a view's state comes from, and how it gets to those who lack it
    storage        this worker's part in the run's storage: claims, saves, where the hub is
    compiled       what torch compiles goes with the run

All of them read one `Context`, which does not change. What changes is published by who owns it: the place in the view
by `ViewGroup`, where the run stands by `RunState`, what the worker is doing by `Phases`.
"""

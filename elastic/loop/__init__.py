"""The training loop: what one worker does from joining a run to leaving it. `elastic.Run` is its public face.

    session     what a worker holds while it is in a run, opened in order and given back in reverse
    view_group  the view it is in, its rank there, and the group that it shares with the others
    restorer    where a view's state comes from: peers that hold it, or storage
    loop        steps, one after the other, and the script's own code between them
    step        this worker's shares, and the exchange that completes them
    assignment  which rank computes which shares, and in which order their sums are added
    exchange    gradients, buffers and sums of one step, together
    update      what an exact gradient is made of: opened, computed, closed, and the step committed
    boundary    between two steps: what the exchange agreed on happens, on every worker
    recovery    a collective failed: into the next view, or to this process's end
    departure   how a worker leaves
    evaluation  a function's sums over a dataset, each example exactly once
    run_state   what is applied, and what was agreed on since
    transfer    who lacks the state, and how those who hold it send it
    saver       the coordinator's hand on the run's storage
    phases      what the worker is doing, said to its agent
    context     what all of them share
    portable    one instruction set on machines of several kinds

All of them read one `Context`, which does not change. What changes is published by who owns it: the place in the view
by `ViewGroup`, where the run stands by `RunState`, what the worker is doing by `Phases`.
"""

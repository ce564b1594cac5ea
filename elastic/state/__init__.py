"""What must survive of a run beside its position: how it is gathered, compared, put back, and drawn anew.

train_state      all of it, as one tree
modules          which a run knows, and where their buffers hang; leftout: buffers that no load_state_dict fills
modes            which modules are in eval mode
trained          which parameters train, in which groups of the optimizers; trained_set: one answer to that
randomness       where every random number comes from

applied          what code between two steps may change, as it was when the last step was applied; rewound: its buffers
weights          have they been written since the last update? data_access: through `.data`
since_boundary   what a resume would do once more; repeated_writes: what a script does again there is put back
body             what the body of a loop may not do; clipping: what it may, where there are no gradients yet
staging          a save's copy is waited for before anything writes to what is copied

on_bad           which steps are bad; health: the losses and norms that say so; finite: are these finite numbers?
exact_norm       of what lies in pieces: the same bits however it is cut
sharding         is a model held by several workers together, and where is it cut?
identity         what must be equal for equal bits; settings: what optimizers are set to, on all ranks alike
replica          whether all ranks still hold the same state; normal_form: of an object, to compare it by; bits: of
                 tensors
processor        which one this is, as far as bits depend on it; torch_release: for which releases of torch runs are
gpu_kernels      on a GPU, torch's deterministic ones
compiled         torch.compile under exact mode; compilations: what is called around each; compiled_artifacts: what it
                 has made, for other processes
"""

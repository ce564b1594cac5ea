"""Carries the plan out: in the workers, in what they read, store and run on, and beside them.

injector           inside a worker, at the exact moment; hooks: how it gets there
recording_dataset  which example was really read?
bad_storage        the storage fails
overrides          what a run does in a drill, whatever its script says
node_starter       how nodes are started; node_hosting: where; joining_nodes: those that join; latecomer: one of them
"""

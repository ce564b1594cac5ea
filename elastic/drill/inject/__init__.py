"""Carries the plan out: in the workers, in what they read, store and run on, and beside them.

injector           inside a worker, at the exact moment; hooks: how it gets there
recording_dataset  which example was really read?
bad_storage        the storage fails
node_starter       how nodes are started; joining_nodes: those that join; latecomer: one of them
"""

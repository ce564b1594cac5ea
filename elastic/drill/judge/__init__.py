"""Did the run keep its promises? Pure functions of its events, and of what it stored.

review              brings a run before the judge
invariants          did it keep its promises?
surviving_steps     of which steps does the state consist that survived?
survival            was anything taken from those who survived?
contents            was the same example read wherever it was read?
stored_checkpoints  does storage hold what training had?
misled              what is a worker that a fault has misled no witness of?
grouping            events in groups
verdict             what was found
"""

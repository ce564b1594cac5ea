"""Who may write below a URL, what is newest there, and what may go.

claims        the right to write: numbered, one winner per number; claim_record: as it lies in storage
own_claim     this process's; newer_claim: is it still the newest?
holder        may a newcomer take the claim from its holder?
liveness      is the holder alive, as it answers itself? heartbeat: what it changes in the storage while it lives
orphans       writer processes whose parents are gone: who waits for them?
history       what the storage says of claims and commits; lineage: which checkpoints belong to the run? Pure
retention     what may go; sweeps: when that is done
"""

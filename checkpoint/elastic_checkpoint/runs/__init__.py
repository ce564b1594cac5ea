"""Who may write below a URL, what is newest there, and what may go.

claims        the right to write: numbered, one winner per number; tenure: this process's
fence         is our claim still the newest?
holder        may a newcomer take the claim from its holder?
beacon        is the holder alive, as it answers itself? moved_beacon: who answers for it now;
              sign_of_life: what it changes in the storage as long as it lives
orphans       writer processes whose parents are gone: who waits for them?
history       what the storage says of claims and commits; lineage: which checkpoints belong to the run? Pure
note          a word beside a commit, written after it
retention     what may go; sweeps: when that is done
"""

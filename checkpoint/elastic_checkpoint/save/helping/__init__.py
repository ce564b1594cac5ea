"""Several processes that hold the same bytes store one save: one of them commits it, the others help.

    dealing   who stores which object
    messages  what they say to each other
    helper    a process that helps

Who commits has the claim, the plan and the manifest, as if it were alone (save/writer/sharing.py). It offers objects by
name, size and hash; a helper stores one only if its own bytes have that hash, so nobody needs to know beforehand that
all hold the same.
"""

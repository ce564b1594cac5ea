"""How a worker leaves.

departure    not before what it holds is safe
deadline     where no boundary comes before its machine goes
shared_save  where all nodes leave, all upload the last save
"""

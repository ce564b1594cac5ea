"""How a worker leaves.

departure    not before what it holds is safe
deadline     where no boundary comes before its machine goes
"""

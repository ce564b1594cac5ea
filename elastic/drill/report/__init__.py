"""What people read: while it runs, at its end, and what kind of bug in their script may be the reason.

follow        a run's events while it writes them; story: told as they come
findings      all that is known at the end; show: shows it; costs: what did each fault cost?
diagnosis     what kind of bug has this signature?
"""

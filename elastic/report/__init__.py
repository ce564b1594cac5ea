"""What became of a run, drawn from its events afterwards. Imports `events`, and nothing of training.

command          `elastic report`; serve: its page over HTTP
report           what became of a run; summary: for the terminal; sentences: its words
page             as one page of HTML; charts: what is drawn there; curves: what the steps gave
completion       how far did it come?
views            which views were there, and who was lost? view_changes: what did each change cost?
ledger           where did every worker's time go?
left_out         examples that raised, and steps that were bad
damaged_records  which records can a report be made of? clocks: whose clock is wrong?
"""

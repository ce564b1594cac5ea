"""This worker's part in the run's storage: its claim, its saves, and where the hub is.

saver          the coordinator's hand on it: claims it, reads the state to go on from, saves
save_schedule  when the next save is due
save_duration  how long it will take
failed_saves   what becomes of those that fail: what is at risk, and a copy elsewhere
under_way      saves that are not known to be committed, and those that came too late
claim_lookup   a claim that a node could not read as it came
step_digest      what the step behind a save has read and computed, for whoever resumes there
hub_notice     where the hub is, for those who come by the run's URL
"""

"""Where the first nodes of a run meet: torch's rendezvous, its store, and what they leave of themselves there.

store            at which of the named hosts it is
store_host       those that are here, each in a process of its own
store_process    and what that process is
written_meeting  or at which that is written at the run's URL
round            a round of the rendezvous
state            what nodes leave there, signed
caller_names     torch's records of it, without a search for their names
"""

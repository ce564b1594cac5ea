"""What a run records, as it happens. Training imports this, and nothing of those who read it.

schema        every event, with each of its facts; drill_schema: those of a drill's observer
event         an event as it is written, and as it is read; declarations: the schema as values
log           where training writes; sinks, remote_sink: where records go
segments      the files of a worker's log; compaction: what stands for many records
reading       the records of a run, of all workers
observer      what may somebody outside see of a run, and where may they touch it?
timing        what a worker spends its time on; account: where its time went, by part
digests       what a step read and summed, in few bytes; words: numbers and causes, for people
"""

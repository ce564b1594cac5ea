"""What a hub decides by, as functions of what it knows.

Pure but for what they remember of earlier endings and kills.

next_view  who is in it, and in which order
leaving    may a worker leave, and who saves first?
endings    is a worker that ended replaced, or does the run end? kills: of those that are killed from outside
"""

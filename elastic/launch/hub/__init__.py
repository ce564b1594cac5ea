"""A node's way to the run's hub: in this process, in another node's, or being looked for.

link            which of the three it is, and from one to the next
server          the hub is here, and heard over TCP
client          it is elsewhere: a connection, and its end
roster_search   it was lost: the nodes that one knows of are asked, one after the other
written_lookup  it was never known: where it is, by what somebody wrote of it
announcement    what the hub itself says of that at the named hosts
step_down       a hub that may not go on looks for the one that may
rules           whom does one ask, for how long, and what does one answer; who is silent? Pure
"""

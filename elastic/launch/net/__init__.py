"""Agents reach each other: TCP in one loop that never waits.

addresses        under which address others find this node, and at which ports
agent_port       where an agent hears those of other nodes, and who of them is of this run
dialing          how it calls them
loop_connection  one end of a line of messages
event_loop       the loop: its turns, and what leaves at the end of one
"""

"""How processes of one job reach each other: lines of JSON over TCP, and what is known of the machine they are on.

One way for agents, hub, writers, ranks that save together, and whoever asks whether a run is alive:

codec         messages as types, and as lines
secret        of a run; transport: in the clear, or by TLS (tls) where there is a secret
event_loop    turned by an agent, by a thread, or by whoever waits for an answer
connection    one end of a line of messages, in a loop
dialing       how one is made, and a question asked by a deadline
port          where they are accepted, and pending until they have said who they are
peers         one process that many are connected to, and one of these
machine       which machine is this, and how do others reach it?

rank_channel  ranks that save and load together agree; rank_messages: what they say; roll_call: which of them have come
rank_bytes    how bytes travel between them
errors        an error as a message
"""

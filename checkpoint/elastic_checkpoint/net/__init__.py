"""How processes of one job reach each other: lines of JSON over TCP, and what is known of the machine they are on.

server         one process that many are connected to; client: one of these; greeting: how they come to know each other
connection     of two processes; codec: messages as types; framing: as lines; errors: an error as a message
listener       a port, one thread that serves it, and strangers: who has connected, and has not said who it is
transport      in the clear or by TLS; tls, secured: by TLS, where there is a secret
secret         of a run
keepalive      how the loss of a machine is noticed
machine        which machine is this, and how do others reach it?
rank_channel   ranks that save and load together agree; rank_messages: what they say
arrivals       which of them have come
"""

"""How the agents of a run reach each other, over elastic_checkpoint/net's one transport.

addresses   under which address others find this node, and at which ports
agent_port  where an agent hears those of other nodes, and who of them is of this run
"""

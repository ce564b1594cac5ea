"""`elastic run`: a node's agent, the processes that it starts, and torchrun's flags.

run_command  from the command line to an agent; arguments: torchrun's flags, and what differs
meeting      how nodes meet: at the hub, or by torch's rendezvous first
node_rules   what an agent knows of its node from the beginning
agent        starts workers, passes on what they and the hub say, and reaps them

hub          a node's way to the run's hub: who has it, who looks for it, and where
rendezvous   the store at which the first nodes meet, and what they leave there
net          addresses, ports and connections between agents, in the agent's one loop
node         the machine is taken, or the run is over: notices, leaving, the exit status
workers      the agent's side of a worker: started, watched, ended, and what people see of it
fork_server  the process that has imported what the script does, and from which workers are forked
processes    what holds of one process: a worker's life, a script as `__main__`, signals, children
string_hashes  strings hash alike in all of them
"""

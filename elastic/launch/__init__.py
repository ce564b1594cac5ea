"""`elastic run`: a node's agent, the processes that it starts, and torchrun's flags.

The way into a run, and its hub:

    run_command          from the command line to an agent; arguments: torchrun's flags, and what differs
    nodes                how nodes meet: at the hub, or by torch's rendezvous first
    addresses            under which address others find this node, and at which ports
    rendezvous_store     at which of the named hosts the rendezvous' store is; written_meeting: or at which that is
                         written at the run's URL
    rendezvous_round     a round of it; rendezvous_state: what nodes leave of themselves there, signed
    hub_lookup           where the hub is, by what somebody wrote of it; hub_announcement: what the hub itself says of
                         that at the named hosts
    read_ahead           the newest checkpoint is read meanwhile

    agent_port           where an agent hears those of other nodes; dialing: how it calls them; loop_connection: one end
                         of a line of messages
    hub_link             a node's way to the hub: in this process (hub_here), elsewhere (attendance), or looked for
                         (hub_seeker; hub_seeking: whom it asks); other_hub: one to which this one steps down
    lease                for how long a host has said nothing
    place_wait           the run is full: when does a node ask again?

The agent, and how processes start:

    agent                starts workers, passes on what they and the hub say, and reaps them
    event_loop           one turn of its loop; node_rules: what the agent knows from the beginning
    node_worker          one worker as its agent has it; children: how they ended, and an end to all
    starter              a worker in this place becomes a process; start_times: where a start's time goes
    warm                 the process that has imported what the script does, and from which workers are forked
    warm_messages        what it and the agent say to each other
    preloaded            what it has loaded as a fork of the agent, and where a script would notice
    quiet_torch          torch's C++ says errors only, in the agent
    beginning            how far it may run the script; importing: what it has done that forks must not share
    generators           their random generators
    worker               the life of a worker process; script, main_module: what it runs, and as what; ending: its end

Deaths and hangs:

    death_watch          a death is heard before the memory is gone; robust_mutex: by what
    worker_watch         a worker's record is looked at, and one that is stuck is killed; sightings: what is seen there
    memory               what the kernel's out-of-memory killer took

Leaving and ending:

    early_signals        signals to leave that come before the agent takes them
    node_notices         what says that this machine is taken; notice_hook: --on-notice; hints: a save, nobody leaves
    node_departure       when a node leaves, why, and how long its workers may take
    node_end             the agent's exit status

What people see of workers:

    logs                 where their output goes
    shown_failures       an exception is shown once, however many meet it
"""

"""Who takes part: the hub that decides views, its rules and messages, and the worker's end of them.

hub          decides all views, and asks those who own what it knows: nodes, workers; admission: who may come; joining:
             newcomers; release: who may go; replacements: of workers that ended; shortage: too few nodes; claiming: the
             run's next claim; reports: what nodes tell a hub that takes over; run_end; orders: what goes out
rules        who is in the next view, in which order, and when do views come to nothing?
leaving      may a worker leave?
endings      is a worker replaced, or does the run end? kills: of those that are killed from outside; ended_before: of
             those that an earlier hub had counted
stalls       who hangs? hang_watch: from second to second; standstill: views break, and nobody is lost
messages     what is said, as types: worker_messages, agent_messages; message_checks: what none may carry; failure: that
             of a worker, which loads quickly; wire: as lines; known_lists: without what the other end knows already
live         a worker's end of the channel to its agent
progress     what a worker does, in memory that its agent reads
environment  what a launcher tells a worker
board        what workers say to each other while they form a group
signal_pipe  signals, for whoever waits for something else as well
rendezvous   one view for the ranks that torchrun started; missing: who of a view is gone
succession   the hub is lost, or nodes are: may those who are left go on? going_on: what is asked and done for it;
             takeover: for whom the next hub waits
node_report  what a node tells the next hub; hub_file: where newcomers find it; written_hub: what is believed of that
view         the list of workers that all of this is about
"""

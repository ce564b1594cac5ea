"""The hub decides, for all nodes, which workers form which view. No file here has a socket, a process or a clock.

hub           takes what is said, asks the files below, and decides
nodes         which nodes are with it; workers: how each worker stands; orders: what goes out to them
admission     a node says hello; reports: what those tell that were elsewhere; takeover: for whom the next hub waits
joining       who joins, and who waits for newcomers; runs: of one script, one after the other
release       who may go
replacements  of workers that ended; run_end: when that is the end of the run
shortage      too few nodes for a view
claiming      this side may go on only under the run's next claim; signs_of_life: may others have begun anew meanwhile?
hang_watch    who hangs; standstill: views break, and nobody is lost
"""

"""The hub decides, for all nodes, which workers form which view. No file here has a socket, a process or a clock.

hub           takes what is said, asks the files below, and decides
nodes         which nodes are with it; workers: how each worker stands; orders: what goes out to them
admission     a node says hello; takeover: what those tell that were elsewhere, and for whom the next hub waits
joining       who joins, and who waits for newcomers, in which of the script's runs; release: who may go
replacements  of workers that ended; run_end: when that, or a lack of nodes, is the end of the run
worker_group  a launch whose script enters no run: all its workers start again together, as torchrun has it
claiming      this side may go on only under the run's next claim: may others have begun anew meanwhile?
hang_watch    who hangs, and whether views break again and again while nobody is lost
"""

"""Drills of scripts for torchrun, which know nothing of elastic: all their workers start again, as they would there.

watched   runs such a script in a worker, and notes what it trains on
progress  what it shows itself: lines of output, saves, points of TensorBoard's
lineage   which steps are in the result, and what follows from that (pure)
drill     two runs of it, and the faults that strike the second
table     both runs, row by row
"""

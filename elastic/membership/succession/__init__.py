"""Nodes are lost, or the hub is: those who are left go on without them, if nobody else can.

succession    may they? Pure
going_on      what a hub knows of those who might go on elsewhere, and what it must have before its own side does. Pure
              but for what it remembers
node_report   what each node knows of the run, for the next hub
ended_before  the workers that ended, for the same
"""

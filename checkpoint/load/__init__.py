"""From a commit to a state in memory, to another tool's files, or to what differs: nothing is believed unverified."""

"""Which examples a step reads, as a pure function, and reading them: ahead of the loop, in processes, from files."""

"""Which examples a step reads, as a pure function, and reading them: here, ahead of the loop, in loader processes."""

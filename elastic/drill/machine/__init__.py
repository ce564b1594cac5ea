"""What belongs to a drill on this machine, and what was left on it: processes, memory, files, descriptors. Linux."""

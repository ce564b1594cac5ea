"""What holds of one process, whatever else there is: a worker's, or the agent's.

worker         the life of a worker process
script         what it runs, and as what
ending         its end; of_torchrun: what it asks for that torchrun gives
robust_mutex   what it holds for as long as it lives

children       the children of a process: how they ended, and an end to all
early_signals  signals to leave that come before the agent takes them
quiet_torch    torch's C++ says errors only, in the agent
"""

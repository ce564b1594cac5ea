"""What agents, workers and the hub say to each other.

messages         who hears what, and what arrives as one of these
worker_messages  a worker's and what it is told; agent_messages: an agent's and what it is told
message_checks   what none may carry
wire             as lines of JSON; known_lists: without what the other end knows already
"""

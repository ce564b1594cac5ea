"""What agents, workers and the hub say to each other.

messages         which words there are, and what arrives as one of them
worker_messages  a worker's and what it is told; agent_messages: an agent's and what it is told
message_checks   what none may carry
failure          what a worker says last, which must load quickly
wire             as lines of JSON; known_lists: without what the other end knows already
"""

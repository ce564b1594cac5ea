"""Counts: how often may somebody disturb a run before it shows? `make counts` asks more often than `make test`."""

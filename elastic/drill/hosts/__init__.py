"""Whole hosts on this machine, of a network of their own, for faults of hosts: Linux namespaces. Needs root."""

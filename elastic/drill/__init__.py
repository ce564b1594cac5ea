"""Runs that are hurt on purpose and judged by what they did: faults, the observer that injects them, judge, cluster."""

"""Notices: word that this worker must leave soon, from wherever it comes."""

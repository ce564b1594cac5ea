"""Notices: word that this node must leave soon, or may have to, from wherever it comes."""

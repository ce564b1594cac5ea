"""What several ranks agree on before they save together: the same step and state, a name, and who stores what."""

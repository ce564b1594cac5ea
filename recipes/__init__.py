"""Scripts that people copy."""

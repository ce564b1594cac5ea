"""Who takes part: how the workers of a view find each other and learn who is missing."""

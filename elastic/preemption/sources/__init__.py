"""Who may say that this node is taken: a class each, in a file of its own."""

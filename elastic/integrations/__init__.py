"""Frameworks with loops of their own. Nothing here is imported by the rest of elastic, nor needed by it."""

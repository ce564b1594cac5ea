"""Several ranks load together: each byte is read once, and all hold the same checkpoint afterwards, or none does."""

"""What must survive of a run beside its position: how it is gathered, compared, put back, and drawn anew."""

"""What people read: while it runs, at its end, and where in their script the reason may be."""

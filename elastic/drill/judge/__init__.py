"""Did the run keep its promises? Pure functions of its events, and of what it stored."""

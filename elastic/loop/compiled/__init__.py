"""What torch compiles goes with the run: later launches and fresh machines need not compile it again.

cache     kept in the run's storage, and taken from there where it would be compiled again
arriving  what is loaded, as it comes
storage   where it lies there, as objects, of which the oldest go when there are too many
sealed    a code that only those who know the run's secret can have put there
"""

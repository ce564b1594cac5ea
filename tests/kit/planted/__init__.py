"""Bugs of our own product, on purpose: does the drill's judge notice each of them?

reading, summing, recovering, passing_over, storing, copying, ending   the bugs, one function each
bug         what a bug is: what it patches, under which plan it shows, which invariants must name it
plans       the runs that bugs show in
planting    switches one on in every process of a launch, from outside; the product knows nothing of it
catalogue   all of them, and the table of docs/internals/planted-bugs.md
"""

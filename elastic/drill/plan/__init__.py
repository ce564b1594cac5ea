"""What is to go wrong: the command line, drawing from a seed, and the plan that comes of it. Values only.

flags           the flags of `elastic drill`; options: what they mean together; fault_argument: one fault among them
draw            which faults strike, when and whom? From a seed; replay: from a recorded fleet
drill_plan      on how many workers, and all that is to go wrong
saves           how often does the run save?
"""

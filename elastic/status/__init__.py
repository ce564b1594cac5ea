"""What a run shows while it goes on: lines on the console, a panel in a terminal.

console        the few lines that a run says by itself
tracker        what the status shows, from one worker's events
figures        what metrics show, of one worker
terminal       the status in the last lines of a terminal
unread_output  what is printed when nobody can read it any more ends nobody
"""

"""What a run shows while it goes on: lines on the console, a panel in a terminal.

console         the few lines that a run says by itself
tracker         what the status shows, from one worker's events
figures         what metrics show, of one worker
panel           the same as two lines
terminal        keeps the last lines of a terminal for it
terminal_guard  gives the terminal back, however the process ended
unread_output   what is printed when nobody can read it any more ends nobody
"""

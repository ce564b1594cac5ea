"""What a run shows while it goes on: lines on the console, a panel in a terminal."""

"""The exit statuses by which a worker says how it ended, and an agent how its node did."""

from __future__ import annotations

NOT_SAVED = 1  # of a worker that had to leave, and could not save what nobody else holds
AGAIN = 75  # EX_TEMPFAIL: of a worker that asks to be started again, and of an agent for whose node there was no place
CUT_SHORT = 76  # of a worker that was told to leave, and did not come to a boundary before its machine was to go
WRONG = 77  # of a worker that gave other bits than most (errors.ComputesWrongly.exit_status)
INTERRUPTED = 130  # as a shell reports SIGINT: Ctrl-C has ended it, once the state was saved; or twice, at once

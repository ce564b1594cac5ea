"""What each step of a run came to, bit by bit, written beside its checkpoints; two such compared.

`read_record` reads it, and docs/reference/record.md says what is in it. Nothing of training reads it.
"""

from elastic.record.reading import Record, read_record
from elastic.record.step_record import Part, StepRecord

__all__ = ["Part", "Record", "StepRecord", "read_record"]

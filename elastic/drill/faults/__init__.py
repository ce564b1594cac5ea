"""Which faults happen, to whom, and at which exact moment? Values: printed, saved, replayed, shrunk by hand.

base       what a kind of fault answers about itself; scene: what it finds where it strikes
moments    at which moments they can strike
signals, script_faults, storage_faults, host_faults, join, message  the kinds, by what they strike
misleading those of which no process dies, and which the run is to find; bits: one bit of a tensor is another one
registry   which kinds there are, and a fault as JSON
plan       several of them, and which are due
"""

from elastic.drill.faults.base import Fault
from elastic.drill.faults.host_faults import Cut, Heal, LoseHost, LosePackets, Partition, SlowNetwork
from elastic.drill.faults.join import Join
from elastic.drill.faults.message import Message
from elastic.drill.faults.misleading import (
    CorruptBatch,
    CorruptGradient,
    CorruptState,
    OtherRate,
    OutOfStep,
    StaleState,
)
from elastic.drill.faults.moments import (
    BEFORE_STEPS,
    IN_BACKWARD,
    IN_EXCHANGE,
    IN_TRANSFER,
    IN_UPDATE,
    OF_A_SHARE,
    OF_A_STEP,
    OF_A_VIEW,
    OF_THE_SCRIPT,
    PHASES,
    At,
)
from elastic.drill.faults.plan import Plan, due
from elastic.drill.faults.registry import KINDS, NAMED
from elastic.drill.faults.script_faults import OutOfMemory, Raise, Slow, StickLoader
from elastic.drill.faults.signals import (
    Hold,
    Kill,
    KillAgent,
    KillAll,
    KillChild,
    KillTogether,
    LeaveNode,
    Stop,
    Terminate,
)
from elastic.drill.faults.storage_faults import Disk, Flip, LoseCheckpoint

__all__ = [
    "BEFORE_STEPS", "IN_BACKWARD", "IN_EXCHANGE", "IN_TRANSFER", "IN_UPDATE", "KINDS", "NAMED", "OF_A_SHARE",
    "OF_A_STEP", "OF_A_VIEW", "OF_THE_SCRIPT", "PHASES", "At", "CorruptBatch", "CorruptGradient", "CorruptState",
    "Cut", "Disk", "Fault", "Flip", "Heal", "Hold", "Join", "Kill", "KillAgent", "KillAll", "KillChild",
    "KillTogether", "LeaveNode", "LoseCheckpoint", "LoseHost", "LosePackets", "Message", "OtherRate", "OutOfMemory",
    "OutOfStep", "Partition", "Plan", "Raise", "Slow", "SlowNetwork", "StaleState", "StickLoader", "Stop",
    "Terminate", "due",
]  # fmt: skip

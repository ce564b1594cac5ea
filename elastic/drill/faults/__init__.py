"""Which faults happen, to whom, and at which exact moment? Values: printed, saved, replayed, shrunk by hand.

base        what a kind of fault answers about itself; each kind is a class in a file of its own
lose_node, several_workers, host_fault, silent, spoilt_checkpoint  what kinds have in common: of a node, of several
            workers, of a whole host, of what the run is to find, of the newest checkpoint
bits        one bit of a tensor, or of a batch, is another one
registry    which kinds there are
moments     at which moments they can strike
plan        several of them, and which are due; documents: as JSON
"""

from elastic.drill.faults.base import Fault
from elastic.drill.faults.corrupt_batch import CorruptBatch
from elastic.drill.faults.corrupt_gradient import CorruptGradient
from elastic.drill.faults.corrupt_state import CorruptState
from elastic.drill.faults.cut import Cut
from elastic.drill.faults.disk import Disk
from elastic.drill.faults.exception import Raise
from elastic.drill.faults.flip import Flip
from elastic.drill.faults.heal import Heal
from elastic.drill.faults.hold import Hold
from elastic.drill.faults.join import Join
from elastic.drill.faults.kill import Kill, KillTogether
from elastic.drill.faults.kill_agent import KillAgent
from elastic.drill.faults.kill_all import KillAll
from elastic.drill.faults.kill_child import KillChild
from elastic.drill.faults.leave_node import LeaveNode
from elastic.drill.faults.lose_checkpoint import LoseCheckpoint
from elastic.drill.faults.lose_host import LoseHost
from elastic.drill.faults.lose_packets import LosePackets
from elastic.drill.faults.message import Message
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
from elastic.drill.faults.other_rate import OtherRate
from elastic.drill.faults.out_of_memory import OutOfMemory
from elastic.drill.faults.out_of_step import OutOfStep
from elastic.drill.faults.partition import Partition
from elastic.drill.faults.plan import Plan, due
from elastic.drill.faults.registry import KINDS, NAMED
from elastic.drill.faults.slow import Slow
from elastic.drill.faults.slow_network import SlowNetwork
from elastic.drill.faults.stale_state import StaleState
from elastic.drill.faults.stick_loader import StickLoader
from elastic.drill.faults.stop import Stop
from elastic.drill.faults.terminate import Terminate

__all__ = [
    "BEFORE_STEPS",
    "IN_BACKWARD",
    "IN_EXCHANGE",
    "IN_TRANSFER",
    "IN_UPDATE",
    "KINDS",
    "NAMED",
    "OF_A_SHARE",
    "OF_A_STEP",
    "OF_A_VIEW",
    "OF_THE_SCRIPT",
    "PHASES",
    "At",
    "CorruptBatch",
    "CorruptGradient",
    "CorruptState",
    "Cut",
    "Disk",
    "Fault",
    "Flip",
    "Heal",
    "Hold",
    "Join",
    "Kill",
    "KillAgent",
    "KillAll",
    "KillChild",
    "KillTogether",
    "LeaveNode",
    "LoseCheckpoint",
    "LoseHost",
    "LosePackets",
    "Message",
    "OtherRate",
    "OutOfMemory",
    "OutOfStep",
    "Partition",
    "Plan",
    "Raise",
    "Slow",
    "SlowNetwork",
    "StaleState",
    "StickLoader",
    "Stop",
    "Terminate",
    "due",
]

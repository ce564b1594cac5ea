"""In which order a run visits its examples: what `Data(order=…)` takes.

A class with one method `for_run(sizes)`, as `Order` has it, is an order, too.
"""

from elastic.data.bucketed import Bucketed
from elastic.data.mixture import Mixture
from elastic.data.order import EpochOrder, Order, Sequential, Shuffled, Sizes
from elastic.data.weighted import Weighted

__all__ = ["Bucketed", "EpochOrder", "Mixture", "Order", "Sequential", "Shuffled", "Sizes", "Weighted"]

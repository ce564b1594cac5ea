"""The benchmarks, one line each; or one of them: python -m tests.benchmarks [NAME [OPTIONS]]

make bench lists them; make bench NAME=recovery OPTIONS="--quick" runs one. Ctrl-C ends it with the figures that it has.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

BENCHMARKS = {
    "start": "from a command to its first step, beside one process and plain torchrun",
    "compile_cache": "from a command to its first step of a compiled model, with what another machine compiled",
    "steady_state": "steps when nothing goes wrong, beside plain loops and DDP",
    "recovery": "what a fault costs, beside plain torchrun",
    "goodput": "recorded spot fleets replayed under elastic run and plain torchrun, beside the simulation",
    "hosts": "what the loss of a whole host costs, beside plain torchrun",
    "scale": "how long views of up to 16,384 workers take to form",
    "connection_costs": "what a connection of the control plane, and a line of it, cost either end",
    "topology": "bytes that leave a host in a step, beside a ring's",
    "checkpoints": "a save and a load, beside torch.save and DCP",
    "save_overlap": "a save copied at once, and copied while the next step computes",
    "checkpoints_group": "what comparing replicas costs ranks that save together",
    "checkpoints_s3": "a save and a load on S3, beside plain PUTs and GETs",
    "storages_s3": "obstore beside s3fs",
    "secret": "what the run's secret costs agents and hub",
    "data_speed": "the order of an epoch, beside a shuffled list; loaders, beside a DataLoader",
    "data_correctness": "examples lost and repeated by a run that is killed and resized, beside other loaders",
    "events": "what recording costs a step",
    "manifest": "what a run's manifest costs it, beside none",
    "record": "what the record of its steps costs a run, beside none",
    "cross_check": "what shares that two workers pass cost a run, and what is compared before a save",
    "sharded": "steps, losses and joins of models that several workers share, beside torch's own reduce-scatter",
    "torchft_hsdp": "the loss of a member of a replica, beside torchft's HSDP",
    "exact_norm": "the norm of gradients that is the same at every cut, beside torch's and a step",
}


def main(arguments: Sequence[str]) -> int:  # noqa: RET503
    if not arguments:
        print('make bench NAME=… [OPTIONS="…"]; OPTIONS="--help" says what one measures\n')
        for name, what in BENCHMARKS.items():
            print(f"{name:18} {what}")
        return 0
    name = arguments[0]
    if name not in BENCHMARKS:
        print(f"{name}: no benchmark; there are {', '.join(BENCHMARKS)}", file=sys.stderr)
        return 2
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, "-m", f"tests.benchmarks.{name}", *arguments[1:]])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

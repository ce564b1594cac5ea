"""Plants a bug in this process, if its environment names one. Python imports this file at every start where its folder
is on PYTHONPATH, so agents, fresh workers, the fork server, loader processes and checkpoint writers all come by here.
"""

import os

if "PLANTED_BUG" in os.environ:
    try:
        from tests.kit.planted.planting import plant

        plant(os.environ["PLANTED_BUG"])
    except BaseException as error:  # python would print it and go on without the bug
        raise SystemExit(f"the planted bug {os.environ['PLANTED_BUG']} cannot be planted: {error!r}") from error

"""The daemon with other constants, so that a test need not wait for its longest deadlines.

python -m tests.support.patched_daemon '{"exporter.driver.daemon.source.INIT_DEADLINE": 3.0}' run --config FILE
"""

from __future__ import annotations

import importlib
import json
import sys

from exporter.__main__ import main

if __name__ == "__main__":
    for path, value in json.loads(sys.argv.pop(1)).items():
        module, _, name = path.rpartition(".")
        constants = vars(importlib.import_module(module))
        if name not in constants:
            sys.exit(f"{module} has no {name}")
        constants[name] = value
    sys.exit(main())

"""What a storm of XID events costs the daemon and its worker, in CPU time.

python -m tests.bench.xid_storm [--seconds 20]

The real binding waits on a library (tests/support/fake_nvml.c; needs cc) that has another event whenever it is asked, so
the rate is what the worker allows.  The library's own share is measured apart, by a program that does nothing else.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import subprocess
import tempfile
import time

from tests.bench.machine import cpu_seconds
from tests.support.nvml_node import Node, build, uuid

WAITS = 200_000
ALONE = r"""
#include <stdio.h>
#include <time.h>
int nvmlInit_v2(void), nvmlDeviceGetHandleByIndex_v2(unsigned, void **), nvmlEventSetCreate(void **);
int nvmlDeviceRegisterEvents(void *, unsigned long long, void *), nvmlEventSetWait_v2(void *, void *, unsigned);
int main(void) {
  void *card, *set;
  char event[64];
  nvmlInit_v2();
  nvmlDeviceGetHandleByIndex_v2(0, &card);
  nvmlEventSetCreate(&set);
  nvmlDeviceRegisterEvents(card, 8, set);
  clock_t begun = clock();
  for (int i = 0; i < WAITS; i++) nvmlEventSetWait_v2(set, event, 0);
  printf("%g\n", (double)(clock() - begun) / CLOCKS_PER_SEC / WAITS);
}
"""


def library_alone(folder: pathlib.Path, library: pathlib.Path, control: pathlib.Path) -> float:
    """Return the seconds that the library itself spends on one event."""
    source, program = folder / "alone.c", folder / "alone"
    source.write_text(ALONE)
    library_path = str(library / "libnvidia-ml.so.1")
    subprocess.run(["cc", "-O1", f"-DWAITS={WAITS}", str(source), "-o", str(program), library_path], check=True)
    environment = os.environ | {"FAKE_NVML_CONTROL": str(control), "LD_LIBRARY_PATH": str(library)}
    return float(subprocess.run([program], env=environment, capture_output=True, text=True, check=True).stdout)


def spent(node: Node, seconds: float) -> tuple[float, float, float]:
    """Return CPU over wall time of daemon and worker, and the events counted a second."""
    pids = [node.pid, node.worker()]
    begun, before, counted = time.monotonic(), [cpu_seconds([pid]) for pid in pids], events(node)
    time.sleep(seconds)
    taken, after = time.monotonic() - begun, [cpu_seconds([pid]) for pid in pids]
    daemon, worker = ((b - a) / taken for a, b in zip(before, after, strict=True))
    return daemon, worker, (events(node) - counted) / taken


def events(node: Node) -> float:
    """Return all events counted so far."""
    return sum(sample.value for sample in node.page().all("gpu_xid_events_total"))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=20.0)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        library = build("cc", folder / "library")
        config = {"gpu": {"interval": "1s", "deadline": "2s"}, "series": "common"}
        node = Node(folder / "node", library, cards=8, config=config)
        try:
            node.until(lambda page: page.up(*range(8)))
            time.sleep(6.0)  # a young worker looks more often
            calm = spent(node, arguments.seconds)
            node.plan(f"event 1 {uuid(0)} 0x8 13 every 100000000")
            time.sleep(1.0)
            storm = spent(node, arguments.seconds)
            share = library_alone(folder, library, node.control) * storm[2]
        finally:
            node.stop()
    print(f"calm: daemon {calm[0]:.2%}, worker {calm[1]:.2%} of a core")
    print(f"storm of {storm[2]:,.0f} events a second: daemon {storm[0]:.2%}, worker {storm[1]:.2%}")
    cost = storm[0] + storm[1] - calm[0] - calm[1]
    print(f"it costs {cost:.2%}; the library itself is {share:.2%} of that")


if __name__ == "__main__":
    main()

"""A source of GPUs over a planned driver, with real worker processes, watched from outside."""

from __future__ import annotations

import json
import os
import time

from exporter.driver.daemon.source import CardSource
from tests.support.waiting import CEILING, describe

INTERVAL, DEADLINE = 0.1, 0.6


class Node:
    """A CardSource over a planned driver."""

    def __init__(self, path, plan, **options):
        self.path = path
        self.plan(plan)
        self.updates = 0
        options = {
            "module": "tests.support.fake_nvml",
            "options": str(path),
            "interval": INTERVAL,
            "deadline": DEADLINE,
            **options,
        }
        self.source = CardSource(on_update=self.count, **options)
        self.pids = set()
        self.most = 0

    def count(self):
        self.updates += 1

    def plan(self, plan):
        new = self.path.with_suffix(".new")
        new.write_text(json.dumps(plan))
        os.replace(new, self.path)

    @property
    def pid(self):
        worker = self.source._supervisor._worker
        return worker.pid if worker is not None else None

    def view(self):
        return self.source.state(time.monotonic())

    def card(self, uuid="GPU-a"):
        return next((state for state in self.view().cards if state.facts.uuid == uuid), None)

    def up(self, *uuids):
        states = {state.facts.uuid: state for state in self.view().cards}
        return all(uuid in states and states[uuid].status.up for uuid in uuids or ("GPU-a", "GPU-b"))

    def reason(self, uuid):
        state = self.card(uuid)
        return state.status.reason if state is not None else None

    def until(self, condition, patience=CEILING):
        """Wait for the condition and return True; fail with what was seen last where it does not come to hold."""
        end = time.monotonic() + patience
        while True:
            if self.pid:
                self.pids.add(self.pid)
            self.most = max(self.most, len([pid for pid in self.pids if alive(pid)]))
            if condition():
                return True
            assert time.monotonic() < end, f"not so within {patience:g} s: {describe(condition)}; {self.view()}"
            time.sleep(0.01)


def alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False

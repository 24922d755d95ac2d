"""One reading of a card from a programmable driver, in this process."""

from __future__ import annotations

from exporter.driver.nvml import library
from exporter.driver.nvml.gpm import SIGNALS as WORK
from exporter.driver.nvml.gpu import GpuReader
from tests.support.fake_nvml import FakeDriver, NVMLError


def make_reader(driver, version="590.48.01", index=0):
    calls, facts = library.open_card(driver, index)
    return GpuReader(driver, calls, facts, version)


def read(plan, version="590.48.01"):
    return make_reader(FakeDriver(plan), version).read(slow=False)


def calls(**actions):
    return {"calls": {f"nvmlDeviceGet{name}": action for name, action in actions.items()}}


def error(code):
    return {"error": code}


def missing(reading):
    """Return what is absent beside the work signals, which this driver does not have; see test_work_signals.py."""
    return {signal: why for signal, why in reading.missing.items() if signal not in WORK}


def refuse(code):
    raise NVMLError(code)

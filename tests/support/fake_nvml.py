"""A driver with pynvml's names that does what a plan says: answer, refuse, block, print, abort.

In-process: ``FakeDriver(plan)`` is handed to whatever takes a driver module; change ``driver.plan`` at will.
In a worker: ``CardSource(module="tests.support.fake_nvml", options="/path/plan.json")``; rewrite the file at will.

A plan is JSON:
  cards      UUIDs in the order of their index (default: two)
  driver     driver version
  fields     id → value, or {"value", "type", "code"}; an id that is not listed is not supported
  missing    names that the binding lacks
  calls      function → action, for all cards; "*" for every call about a card
  at         UUID → function → action; goes first
An action is {"return": x}, {"error": code}, {"block": true} (until the plan changes), {"sleep": s}, {"hold": s}
(with the interpreter held), {"abort": true}, {"print": bytes}; with "every": n only each n-th call.
"""

from __future__ import annotations

import ctypes
import json
import os
import time
from collections import Counter
from types import SimpleNamespace

TYPES = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")

FIELDS = {
    3: 1, 4: 0, 5: 7, 6: 2, 31: 0, 38: 8, 45: 9, 74: 0, 75: 0, 76: 0, 77: 0, 78: 0, 79: 0, 80: 0, 81: 0, 82: 61, 83: 9_000_000, 91: 2, 94: 3, 142: 1, 143: 2, 144: 0,
    145: 0, 185: 412_000, 186: 405_000, 197: 1_000_000, 198: 2_000_000, 230: 0, 269: 0, 270: 0, 271: 0, 29: 4, 30: 5,
}  # fmt: skip
LINK_FIELDS = {138: 1024, 139: 2048, 161: 1, 162: 2, 163: 3}


class NVMLError(Exception):
    def __init__(self, value):
        self.value = value
        super().__init__(f"NVML error {value}")


class c_nvmlEccSramErrorStatus_v1_t(ctypes.Structure):  # noqa: N801
    _fields_ = [
        ("version", ctypes.c_uint),
        *((name, ctypes.c_ulonglong) for name in (
            "aggregateUncParity", "aggregateUncSecDed", "aggregateCor", "volatileUncParity", "volatileUncSecDed",
            "volatileCor",
        )),
        ("bThresholdExceeded", ctypes.c_uint),
    ]  # fmt: skip


class c_nvmlGpuFabricInfo_v2_t(ctypes.Structure):  # noqa: N801
    _fields_ = [("state", ctypes.c_uint8)]


def item(value=0, type_=3, code=0):
    attribute = TYPES[type_] if 0 <= type_ < len(TYPES) else "none"
    return SimpleNamespace(nvmlReturn=code, valueType=type_, value=SimpleNamespace(**{attribute: value}))


def sample(stamp, value):
    return SimpleNamespace(timeStamp=stamp, sampleValue=SimpleNamespace(uiVal=value))


DEFAULTS = {
    "nvmlDeviceGetName": "Fake GPU",
    "nvmlDeviceGetPciInfo": SimpleNamespace(busId="00000000:1B:00.0"),
    "nvmlDeviceGetSerial": "1234",
    "nvmlDeviceGetVbiosVersion": "96.00",
    "nvmlDeviceGetPersistenceMode": 1,
    "nvmlDeviceGetComputeMode": 0,
    "nvmlDeviceGetGspFirmwareVersion": "590.48",
    "nvmlDeviceGetMemoryAffinity": [0b10, 0, 0, 0],
    "nvmlDeviceGetMigMode": [0, 0],
    "nvmlDeviceGetUtilizationRates": SimpleNamespace(gpu=50, memory=20),
    "nvmlDeviceGetEncoderUtilization": [3, 1000],
    "nvmlDeviceGetDecoderUtilization": [4, 1000],
    "nvmlDeviceGetTemperatureV": 55,
    "nvmlDeviceGetMarginTemperature": 32,
    "nvmlDeviceGetPowerUsage": 400_000,
    "nvmlDeviceGetTotalEnergyConsumption": 8_000_000,
    "nvmlDeviceGetPerformanceState": 0,
    "nvmlDeviceGetCurrentClocksEventReasons": 0x4,
    "nvmlDeviceGetCurrPcieLinkGeneration": 5,
    "nvmlDeviceGetCurrPcieLinkWidth": 16,
    "nvmlDeviceGetPcieReplayCounter": 9,
    "nvmlDeviceGetNvLinkState": 1,
    "nvmlDeviceGetTotalEccErrors": 11,
    "nvmlDeviceGetRemappedRows": (5, 6, 1, 0),
    "nvmlDeviceGetEnforcedPowerLimit": 700_000,
    "nvmlDeviceGetPowerManagementLimit": 650_000,
    "nvmlDeviceGetPowerManagementDefaultLimit": 700_000,
    "nvmlDeviceGetPowerManagementLimitConstraints": [200_000, 710_000],
    "nvmlDeviceGetBAR1MemoryInfo": SimpleNamespace(bar1Total=2**37, bar1Used=2**22, bar1Free=2**37 - 2**22),
    "nvmlDeviceGetGridLicensableFeatures": SimpleNamespace(
        isGridLicenseSupported=0, licensableFeaturesCount=0, gridLicensableFeatures=[]
    ),
    "nvmlDeviceGetJpgUtilization": [5, 1000],
    "nvmlDeviceGetOfaUtilization": [6, 1000],
    "nvmlDeviceGetEncoderStats": (2, 30, 900),
    "nvmlDeviceGetEccMode": [1, 1],
    "nvmlDeviceGetRowRemapperHistogram": SimpleNamespace(max=640, high=3, partial=2, low=1, none=0),
    "nvmlDeviceGetC2cModeInfoV": SimpleNamespace(isC2cEnabled=1),
    "nvmlDeviceGetMaxPcieLinkGeneration": 5,
    "nvmlDeviceGetMaxPcieLinkWidth": 16,
    "nvmlDeviceGetNumFans": 2,
    "nvmlDeviceGetRetiredPages": [1, 2],
    "nvmlDeviceGetComputeRunningProcesses": [SimpleNamespace(pid=100, usedGpuMemory=2**30)],
}


class FakeDriver:
    """The functions are made on demand by ``__getattr__``; ``counts`` says how often each was called."""

    NVMLError = NVMLError

    def __init__(self, plan=None, path=None):
        self.plan = plan if plan is not None else {}
        self.path = path
        self.stamp = None
        self.counts = Counter()
        self.asked_fields = Counter()
        self.initialised = True if path is None else False
        self.reload()

    def reload(self):
        if self.path is None:
            return
        try:
            stamp = os.stat(self.path).st_mtime_ns
            if stamp != self.stamp:
                with open(self.path, encoding="utf-8") as file:
                    self.plan = json.load(file)
                self.stamp = stamp
        except (OSError, ValueError):
            return  # caught between two versions of the file: the old plan holds

    def cards(self):
        return self.plan.get("cards", ["GPU-a", "GPU-b"])

    def __getattr__(self, name):
        if name.startswith("c_nvml") and name in globals() and name not in self.plan.get("missing", ()):
            return globals()[name]
        if not name.startswith("nvml") or name in self.plan.get("missing", ()):
            raise AttributeError(name)
        return lambda *args: self.call(name, *args)

    def call(self, name, *args):
        self.reload()
        self.counts[name] += 1
        uuid = args[0] if args and isinstance(args[0], str) else None
        for plan in (self.plan.get("at", {}).get(uuid, {}), self.plan.get("calls", {})):
            for key in (name, "*") if uuid is not None else (name,):
                if key in plan:
                    done, result = self.act(name, plan[key], lambda p=plan, k=key: self.plan_has(p, k, uuid))
                    if done:
                        return result
        return self.answer(name, *args)

    def plan_has(self, plan, key, uuid):
        self.reload()
        current = (self.plan.get("at", {}).get(uuid, {}), self.plan.get("calls", {}))
        return any(part.get(key, {}).get("block") for part in current)

    def act(self, name, action, still):
        if self.counts[name] % action.get("every", 1):
            return False, None
        if "print" in action:
            os.write(1, b"x" * action["print"])
            os.write(2, b"y" * action["print"])
            print("driver says", flush=True)
        while action.get("block") and still():
            time.sleep(0.02)
        time.sleep(action.get("sleep", 0))
        if "hold" in action:
            ctypes.PyDLL(None).usleep(int(action["hold"] * 1e6))
        if "leak" in action:
            LEAKED.append(bytearray(os.urandom(1024)) * (action["leak"] // 1024))
        if action.get("abort"):
            os.abort()
        if "error" in action:
            raise NVMLError(action["error"])
        return "return" in action, action.get("return")

    def answer(self, name, *args):
        special = getattr(self, f"_{name}", None)
        if special is not None:
            return special(*args)
        if name.startswith("nvmlDevice") and args[0] not in self.cards():
            raise NVMLError(15)
        if name in DEFAULTS:
            return DEFAULTS[name]
        raise NVMLError(3)

    def _nvmlInit(self):
        self.initialised = True

    def _nvmlShutdown(self):
        self.initialised = False

    def _nvmlDeviceGetCount(self):
        return len(self.cards())

    def _nvmlDeviceGetHandleByIndex(self, index):
        if not self.initialised:
            raise NVMLError(1)
        if not 0 <= index < len(self.cards()):
            raise NVMLError(2)
        uuid = self.cards()[index]
        action = self.plan.get("at", {}).get(uuid, {}).get("handle")
        if action:
            self.act("handle", action, lambda: True)
        return uuid

    def _nvmlSystemGetDriverVersion(self):
        return self.plan.get("driver", "590.48.01")

    def _nvmlSystemGetNVMLVersion(self):
        return "13.590"

    def _nvmlSystemGetCudaDriverVersion(self):
        return 13010

    def _nvmlDeviceGetUUID(self, uuid):
        return uuid

    def _nvmlDeviceGetMemoryInfo(self, uuid, version=None):
        figures = {"total": 80 * 2**30, "used": 30 * 2**30, "free": 49 * 2**30}
        return SimpleNamespace(**figures, **({"reserved": 2**30} if version else {}))

    def _nvmlDeviceGetClockInfo(self, uuid, domain):
        return (1410, 1980, 2619, 1500)[domain]

    def _nvmlDeviceGetMaxClockInfo(self, uuid, domain):
        return (1980, 1980, 2619, 1545)[domain]

    def _nvmlDeviceGetApplicationsClock(self, uuid, domain):
        return (1980, 1830, 2619)[domain]

    def _nvmlDeviceGetPcieThroughput(self, uuid, direction):
        return (4_000, 9_000)[direction]

    def _nvmlDeviceGetSramEccErrorStatus(self, uuid, reference):
        for name, number in self.plan.get("sram", {}).items():
            setattr(reference._obj, name, number)

    def _nvmlDeviceGetTemperatureThreshold(self, uuid, kind):
        return (92, 87, 95, 89)[kind]

    def _nvmlDeviceGetFanSpeed_v2(self, uuid, fan):
        return (40, 60)[fan]

    def _nvmlDeviceGetGpuFabricInfoV(self, uuid, reference):
        reference._obj.state = 3

    def _nvmlDeviceGetFieldValues(self, uuid, wanted):
        return [self.field(field) for field in wanted]

    def field(self, field):
        number, scope = field if isinstance(field, tuple) else (field, 0)
        self.asked_fields[number] += 1
        default = LINK_FIELDS.get(number, FIELDS.get(number))  # scope 0 is link 0
        value = self.plan.get("fields", {}).get(str(number), default)
        if value is None:
            return item(code=3)
        if isinstance(value, dict) and "unit" in value:  # runs with time, in steps of that many seconds
            return item(int(time.monotonic() / value["unit"]))
        if isinstance(value, dict):
            return item(value.get("value", 0), value.get("type", 3), value.get("code", 0))
        return item(value)


LEAKED = []
_drivers = []


def configure(options):
    _drivers[:] = [FakeDriver(path=options)]


def __getattr__(name):
    if not _drivers:
        raise AttributeError(name)
    return getattr(_drivers[0], name)

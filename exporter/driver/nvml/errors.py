"""What a failing driver call means: one signal is absent, one GPU is unavailable, or the initialisation is over.

The numbers are NVML's return codes, written out because a stand-in for the binding need not have its constants.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from exporter.driver.calls import is_disabled
from exporter.errors import DriverError
from exporter.model import EMPTY, Missing

UNINITIALIZED = 1
INVALID_ARGUMENT = 2
NOT_SUPPORTED = 3
NO_PERMISSION = 4
FUNCTION_NOT_FOUND = 13

# Never true a moment later: remembered until the next initialisation instead of asked again each cycle.
UNSUPPORTED_CODES = frozenset({NOT_SUPPORTED, FUNCTION_NOT_FOUND, 25})
DEVICE_UNAVAILABLE = {15: "lost", 16: "reset_required", 28: "lost"}
DRIVER_UNAVAILABLE = {UNINITIALIZED: "uninitialized", 9: "driver", 12: "library", 18: "mismatch"}
OTHER_REASONS = {NO_PERMISSION: "no_permission", 10: "timeout", 17: "operating_system", 999: "unknown"}


class DeviceUnavailable(DriverError):  # noqa: N818 - a state of the GPU
    """One GPU or MIG instance does not answer any more; others may."""


class DriverUnavailable(DriverError):  # noqa: N818 - a state of the driver
    """The initialisation is over for all GPUs; ``reason`` "uninitialized" ends with another one in this process."""


def code_of(error: BaseException) -> int | None:
    """Return the NVML return code that an exception of the binding carries; None for any other exception."""
    code = getattr(error, "value", None)
    return code if isinstance(code, int) else None


def reason_of(error: BaseException) -> str:
    """Return the closed word under which a failure is counted and shown."""
    if isinstance(error, DriverError):
        return error.reason
    if isinstance(error, ImportError):
        return "library"
    code = code_of(error)
    if code is None:
        return "error"
    for reasons in (DRIVER_UNAVAILABLE, DEVICE_UNAVAILABLE, OTHER_REASONS):
        if code in reasons:
            return reasons[code]
    return "library" if code == FUNCTION_NOT_FOUND else "error"


def missing_for(code: int) -> Missing:
    """Return why a signal is absent after a return code.

    Raises DeviceUnavailable or DriverUnavailable where more than the signal is lost.
    """
    if code in DEVICE_UNAVAILABLE:
        raise DeviceUnavailable(DEVICE_UNAVAILABLE[code], f"the driver answered {code}")
    if code in DRIVER_UNAVAILABLE:
        raise DriverUnavailable(DRIVER_UNAVAILABLE[code], f"the driver answered {code}")
    if code in UNSUPPORTED_CODES:
        return Missing.UNSUPPORTED
    return Missing.NO_PERMISSION if code == NO_PERMISSION else Missing.ERROR


class DeviceCalls:
    """The calls about one GPU or MIG instance; a refusal is remembered until the next initialisation.

    ``call_started`` is when the call now running began (monotonic), None between calls: the worker's main thread
    reads it to tell a GPU that hangs in one call from a GPU that is slow in many.  ``failures`` counts the
    calls that may succeed the next time.  ``skipped_calls``: see ``is_disabled``.
    """

    __slots__ = (
        "_answered",
        "_driver",
        "_handle",
        "call_started",
        "failures",
        "last_error",
        "skipped_calls",
        "unsupported",
    )

    def __init__(self, driver: Any, handle: Any, skipped_calls: Mapping[str, float] = EMPTY) -> None:
        self.skipped_calls = skipped_calls
        self._driver = driver
        self._handle = handle
        self._answered: set[Any] = set()
        self.unsupported: set[Any] = set()
        self.call_started: float | None = None
        self.last_error = ""
        self.failures = 0

    @property
    def handle(self) -> Any:
        """The device's handle, for questions about two GPUs."""
        return self._handle

    def call(self, name: str, *args: Any, key: Any = None) -> Any:
        """Call ``name`` with the device's handle and return its result, or a Missing.

        Raises DeviceUnavailable and DriverUnavailable, no others.  ``key`` is what a refusal is remembered under; it
        defaults to the name and the arguments.
        """
        return self.call_without_handle(name, self._handle, *args, key=key if key is not None else (name, *args))

    def call_without_handle(self, name: str, *args: Any, key: Any = None) -> Any:
        """Do the same for a function that takes no handle, or another one; ``key`` defaults to the name."""
        key = key if key is not None else name
        if key in self.unsupported:
            return Missing.UNSUPPORTED
        function = getattr(self._driver, name, None)
        if function is None:
            return Missing.UNSUPPORTED
        if self.skipped_calls and is_disabled(name, self.skipped_calls):
            self.last_error = "crashed"
            return Missing.CRASHED
        self.call_started = time.monotonic()
        try:
            result = function(*args)
        except Exception as error:
            return self._missing(key, error)
        finally:
            self.call_started = None
        self._answered.add(key)
        return result

    def on_refused(self, key: Any, code: int) -> Missing:
        """Return why ``key`` is absent after ``code``, and remember it where asking again is useless."""
        self.last_error = OTHER_REASONS.get(code, "error")
        missing = missing_for(code)
        # An argument that the driver never accepted is a field or sensor it does not know.  After it was accepted
        # once, the same code is a passing failure.
        if code == INVALID_ARGUMENT and key not in self._answered:
            missing = Missing.UNSUPPORTED
        if missing is Missing.UNSUPPORTED:
            self.unsupported.add(key)
        self.failures += missing is Missing.ERROR
        return missing

    def on_accepted(self, key: Any) -> None:
        """Remember that the driver answered ``key`` at least once."""
        self._answered.add(key)

    def _missing(self, key: Any, error: Exception) -> Missing:
        code = code_of(error)
        if code is not None:
            return self.on_refused(key, code)
        self.last_error = "error"
        # The binding's own objections (a constant of the wrong type, a structure the library does not know) come
        # back on every call, so they count as "does not have it".
        if type(error).__name__ in {"ArgumentError", "NVMLLibraryMismatchError"}:
            self.unsupported.add(key)
            return Missing.UNSUPPORTED
        self.failures += 1
        return Missing.ERROR

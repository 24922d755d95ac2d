"""Which NVIDIA devices are on the PCI bus of this machine, according to sysfs."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from itertools import islice

from exporter.model import canonical_pci

_VENDOR = b"0x10de"
_MAX_DEVICES = 8192
_PERIOD = 10.0  # seconds


class PciDevices:
    """The NVIDIA devices, read when they are asked for.  Owned by one thread."""

    def __init__(self, root: str = "/sys/bus/pci/devices", *, clock: Callable[[], float] = time.monotonic) -> None:
        self._root = root
        self._clock = clock
        self._due = float("-inf")
        self._addresses: frozenset[str] = frozenset()
        self._is_readable = False

    def may_have(self, pci: str) -> bool:
        """Return whether a device may be at an address (canonical); True for all where sysfs shows none of NVIDIA."""
        self._refresh()
        return pci in self._addresses or not self._addresses

    def may_have_switch(self, pci: str) -> bool:
        """Return whether an NVSwitch may be at an address: as ``may_have``, but where sysfs shows a bus it decides.

        The driver names GPUs, also to a container whose sysfs shows none of them, but no switches.
        """
        self._refresh()
        return pci in self._addresses or not self._is_readable

    def _refresh(self) -> None:
        now = self._clock()
        if now >= self._due:
            self._due = now + _PERIOD
            self._addresses = self._read()

    def _read(self) -> frozenset[str]:
        try:
            names = list(islice(os.listdir(self._root), _MAX_DEVICES))
        except OSError:
            names = []
        self._is_readable = bool(names)
        return frozenset(canonical_pci(name) for name in names if self._is_nvidia(name)) - {""}

    def _is_nvidia(self, name: str) -> bool:
        try:
            with open(f"{self._root}/{name}/vendor", "rb") as vendor:
                return vendor.read(16).strip() == _VENDOR
        except OSError:
            return False

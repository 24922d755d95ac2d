"""What follows from the ports of adapters: the best rate seen, whether one is down, and which GPUs are beside it.

Whether a port that is not active should be cannot be read anywhere: many adapters have ports without a cable.  So it
is down if it was active since the daemon's start, or if it looks for a peer while the same port of every equal
adapter (three at least) is active.  One that an administrator disabled, and one that has gone from sysfs, is not.
Rates of equal adapters are not compared: those of storage and of the GPUs often differ on purpose.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from exporter.model import CardState, canonical_pci
from exporter.model.nic import POLLING, NearGpu, NicPort, NicPortKey, NicState, PciLocation
from exporter.model.topology import PCI_PATHS

_MIN_SIBLINGS = 3


class NicTracker:
    """Remembers the best rate of each port, and which were active.  Bounded by the ports of the newest reading."""

    def __init__(self) -> None:
        self._rates: dict[NicPortKey, float] = {}
        self._active: set[NicPortKey] = set()

    def update(
        self, ports: Sequence[NicPort], gpus: Mapping[str, PciLocation], cards: Sequence[CardState]
    ) -> tuple[NicState, ...]:
        """Return the state of each port; ``gpus``: the locations of GPUs by their canonical PCI address."""
        keys = {port.key for port in ports}
        self._rates = {key: rate for key, rate in self._rates.items() if key in keys}
        self._active = {key for key in self._active if key in keys} | {port.key for port in ports if port.is_up}
        for port in ports:
            if port.rate is not None:
                self._rates[port.key] = max(port.rate, self._rates.get(port.key, 0.0))
        located = [
            (card.facts.uuid, gpus[address])
            for card in cards
            if card.facts.instance is None and (address := canonical_pci(card.facts.pci_bus_id)) in gpus
        ]
        return tuple(
            NicState(
                port=port,
                max_rate=self._rates.get(port.key),
                is_down=self._is_down(port, ports),
                nearest=nearest(port.location, located),
            )
            for port in ports
        )

    def _is_down(self, port: NicPort, ports: Sequence[NicPort]) -> bool | None:
        if port.is_up is None or port.is_up:
            return None if port.is_up is None else False
        if port.physical_state == "disabled":
            return False
        siblings = [other for other in ports if other.key != port.key and _kind(other) == _kind(port)]
        alone = bool(port.adapter) and len(siblings) >= _MIN_SIBLINGS and all(other.is_up for other in siblings)
        return port.key in self._active or (alone and port.physical_state == POLLING)


def _kind(port: NicPort) -> tuple[str, str, str]:
    return port.adapter, port.key.port, port.link_layer


def nearest(nic: PciLocation, gpus: Iterable[tuple[str, PciLocation]]) -> tuple[NearGpu, ...]:
    """Return the GPUs with the shortest path to an adapter, all of them where several are equally near."""
    paths = [(uuid, path, _shared(nic, gpu)) for uuid, gpu in gpus if (path := pci_path(nic, gpu))]
    if not paths:
        return ()
    best = min((PCI_PATHS.index(path), -shared) for _, path, shared in paths)
    return tuple(NearGpu(uuid, path) for uuid, path, shared in paths if (PCI_PATHS.index(path), -shared) == best)


def pci_path(first: PciLocation, second: PciLocation) -> str:
    """Return the path between two devices in the words of ``nvidia-smi topo -m``; "" where it is not known."""
    if not first.path or not second.path:
        return ""
    shared = _shared(first, second)
    if shared > 1:  # a bridge below the host bridge; beyond it at most one port of the switch, and the device
        return "PIX" if max(len(first.path), len(second.path)) - shared <= 2 else "PXB"
    if shared == 1:
        return "PHB"
    if first.numa_node is None or second.numa_node is None:
        return ""
    return "NODE" if first.numa_node == second.numa_node else "SYS"


def _shared(first: PciLocation, second: PciLocation) -> int:
    """Return how many bridges two devices share, the host bridge included."""
    shared = 0
    for one, other in zip(first.path[:-1], second.path[:-1], strict=False):
        if one != other:
            break
        shared += 1
    return shared

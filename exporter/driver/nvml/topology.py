"""How the GPUs of a node are connected, asked of the driver pair by pair and link by link; rarely, as it is static.

Names used: nvmlDeviceGetTopologyCommonAncestor(h, other) nvmlDeviceGetP2PStatus(h, other, 0 read 1 write 2 NVLink
3 atomics 4 PCI) nvmlDeviceGetNvLinkRemoteDeviceType(h, link) nvmlDeviceGetNvLinkRemotePciInfo(h, link).busId
The capability's numbers are written out because the binding's constant for "read" is a tuple.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

from exporter.driver.nvml.errors import DeviceCalls, DeviceUnavailable
from exporter.driver.nvml.library import printable
from exporter.driver.nvml.probes import NvLinks
from exporter.model import EMPTY, CardTopology, LinkEnd, Missing, Peer
from exporter.model.topology import CAPABILITIES, STATUSES

_ANCESTORS = {0: "PIX", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}  # 0: two chips on one board
_ENDS = {0: "gpu", 1: "npu", 2: "switch", 0xFF: "unknown"}


class TopologyReader:
    """One pass over some GPUs.  ``complete`` tells after it whether every question got a final answer.

    ``may_continue`` is called before each GPU and pair; Interrupted is raised when it returns False.
    ``skipped_calls``: see ``is_disabled``.  ``calls`` are those about the GPU that the driver is asked about now,
    ``current`` is its uuid.  ``found`` is what is known so far, uuid → topology; other threads may read these while a
    call blocks.
    """

    def __init__(
        self, driver: Any, may_continue: Callable[[], bool] = lambda: True, skipped_calls: Mapping[str, float] = EMPTY
    ) -> None:
        self._driver, self._skipped_calls = driver, skipped_calls
        self._may_continue = may_continue
        self.calls: DeviceCalls | None = None
        self.current = ""
        self.found: dict[str, CardTopology] = {}
        self.complete = True

    def read(self, handles: Mapping[str, Any], *, suspects: Collection[str] = ()) -> dict[str, CardTopology]:
        """Return uuid → topology of the GPUs behind ``handles``.  May block for ever.

        Raises DriverUnavailable and Interrupted.  A GPU that is lost meanwhile is absent; what is not supported is
        empty.  ``suspects``: GPUs that are not asked, as a call about them has not returned; the others are asked
        about them at the very end.
        """
        for about_suspects in (False, True) if suspects else (False,):
            for uuid, handle in handles.items():
                others = {
                    other: peer
                    for other, peer in handles.items()
                    if other != uuid and (other in suspects) is about_suspects
                }
                try:
                    if uuid not in suspects:
                        self._card(uuid, handle, others)
                except DeviceUnavailable:
                    self.complete = False
        return self.found

    def _card(self, uuid: str, handle: Any, others: Mapping[str, Any]) -> None:
        self.current = uuid
        calls = self.calls = DeviceCalls(self._driver, handle, self._skipped_calls)
        self._check()
        known = self.found.get(uuid)
        links = self._links(calls) if known is None else known.links
        peers = {} if known is None else dict(known.peers)
        self.found[uuid] = CardTopology(peers=dict(peers), links=links)
        for other, peer in others.items():
            self._check()
            try:
                peers[other] = self._peer(calls, other, peer, linked=bool(links))
            except DeviceUnavailable:
                # It may be either of the two; its own thread finds out which.
                self.complete = False
            self.found[uuid] = CardTopology(peers=dict(peers), links=links)

    def _check(self) -> None:
        if not self._may_continue():
            raise Interrupted

    def _ask(self, calls: DeviceCalls, name: str, *args: Any, key: Any) -> Any:
        answer = calls.call(name, *args, key=(name, key))
        if answer is Missing.ERROR:
            self.complete = False
        return None if isinstance(answer, Missing) else answer

    def _peer(self, calls: DeviceCalls, uuid: str, other: Any, *, linked: bool) -> Peer:
        ancestor = self._ask(calls, "nvmlDeviceGetTopologyCommonAncestor", other, key=uuid)
        access = {}
        for number, capability in enumerate(CAPABILITIES):
            status = self._ask(calls, "nvmlDeviceGetP2PStatus", other, number, key=(uuid, number))
            if isinstance(status, int) and 0 <= status < len(STATUSES):
                access[capability] = STATUSES[status]
        if linked and access.get("nvlink", "ok") != "ok":
            self.complete = False  # the fabric may still be starting
        return Peer(pci_path=_ANCESTORS.get(ancestor, "") if isinstance(ancestor, int) else "", access=access)

    def _links(self, calls: DeviceCalls) -> dict[int, LinkEnd]:
        """Return the far ends of the links that have one; a link that is down has none."""
        links = NvLinks(calls)
        if links.count is None:
            links.states()  # counts them
        ends = {}
        for link in range(links.count or 0):
            self._check()
            kind = self._ask(calls, "nvmlDeviceGetNvLinkRemoteDeviceType", link, key=link)
            end = _ENDS.get(kind, "unknown") if isinstance(kind, int) else ""
            pci_bus_id = "" if end == "switch" else self._pci_bus_id(calls, link)
            if end or pci_bus_id:
                ends[link] = LinkEnd(kind=end or "unknown", pci_bus_id=pci_bus_id)
        return ends

    def _pci_bus_id(self, calls: DeviceCalls, link: int) -> str:
        return printable(getattr(self._ask(calls, "nvmlDeviceGetNvLinkRemotePciInfo", link, key=link), "busId", ""))


class Interrupted(Exception):  # noqa: N818 - no error: the pass is to be made again later
    """The pass was given up half-way because the driver is about to be shut down."""

"""Network adapters of a simulated node: one of InfiniBand beside each GPU, and one of Ethernet."""

from __future__ import annotations

from dataclasses import dataclass, field

INFINIBAND_RATE, ETHERNET_RATE = 400, 100  # Gb/s
PACKET_BYTES = 1e6  # per second of a link that only keeps itself alive
_FLAP_SECONDS = 8.0  # between two times down while a link flaps
_ERRORS = {"symbol_error": 90, "port_rcv_errors": 12, "local_ack_timeout_err": 30}  # per second while a link flaps


@dataclass(slots=True)
class SimulatedNic:
    """One adapter with one port.  ``flapping``: its link fails again and again; ``down``: for good."""

    index: int
    is_ethernet: bool = False
    flapping: bool = False
    down: bool = False
    received: float = 0.0  # bytes
    sent: float = 0.0
    link_downs: int = 0
    errors: dict[str, float] = field(default_factory=lambda: dict.fromkeys((*_ERRORS, "out_of_sequence"), 0.0))
    _next_flap: float = 0.0

    @property
    def rate(self) -> int:
        """Gb/s of a good link."""
        return ETHERNET_RATE if self.is_ethernet else INFINIBAND_RATE

    def fail(self, *, down: bool) -> None:
        """Let the link flap, or lose it."""
        if down and not self.down:
            self.link_downs += 1
        self.flapping, self.down = not down, down

    def repair(self) -> None:
        """Bring the link back; the counters stay."""
        self.flapping = self.down = False

    def advance(self, now: float, seconds: float, traffic: float) -> None:
        """Advance by ``seconds`` up to ``now``; ``traffic``: bytes that the work of its GPU sends in that time."""
        if self.down:
            return
        self.sent += traffic + PACKET_BYTES * seconds
        self.received += traffic + PACKET_BYTES * seconds
        if not self.flapping:
            return
        for name, per_second in _ERRORS.items():
            self.errors[name] += per_second * seconds
        if now >= self._next_flap:
            self._next_flap = now + _FLAP_SECONDS
            self.link_downs += 1

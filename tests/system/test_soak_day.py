"""On a healthy day nobody is told anything but that alerting works; the same replay tells of a fault.

The day's curve of traffic is lived in five hours here; ``python -m tests.bench.soak_day`` lives twenty-four.
"""

from __future__ import annotations

import pytest

from tests.support import servers, soak_day
from tests.support.tools import tool

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]


@pytest.fixture
def folder():
    for name in ("prometheus", "promtool"):
        tool(name)
    with servers.scratch() as place:
        yield place


def test_a_healthy_and_a_mixed_day_fire_only_the_watchdog(folder):
    days = {"n1:9853": ("healthy", {}), "n2:9853": ("mixed", {"seed": 2})}
    fired, _ = soak_day.replayed(folder, days, hours=5, day=5, read=60)
    assert set(fired) == {("Watchdog", "none")}, fired


def test_the_same_replay_tells_of_a_lost_card_and_of_cards_that_idle(folder):
    days = {
        "n1:9853": ("hang", {"fault_at": 3600, "fault_until": 5400}),
        "n2:9853": ("idle", {"seed": 2}),
    }
    fired, _ = soak_day.replayed(folder, days, hours=2.25, read=60)
    names = {name for name, _ in fired}
    assert {"GpuLost", "EngineFrozen", "GpuMemoryHeldIdle"} <= names, fired
    ((lost, at),) = fired["GpuLost", "critical"]
    assert (lost["gpu"], lost["instance"]) == ("6", "n1:9853")
    assert 3600 < at <= 3600 + 240
    assert {labels["replica"] for labels, _ in fired["EngineFrozen", "critical"]} == {"chat-b"}
    assert {labels["gpu"] for labels, _ in fired["GpuMemoryHeldIdle", "info"]} == {str(gpu) for gpu in range(8)}
    idle = {name for (name, _), found in fired.items() for labels, _ in found if labels.get("instance") == "n2:9853"}
    assert idle == {"GpuMemoryHeldIdle"}, "an idle node is a note about money, and nothing else"

"""What the page says for every recorded page and for simulated cards; the diff of tests/golden is the review.

Recordings of one server in time order are played back 30 seconds apart, so that windows have something to show.
"""

from __future__ import annotations

import pathlib
import re

import pytest

from exporter.catalog import CATALOG
from exporter.catalog.spec import SeriesSet
from exporter.derive.imbalance import group_imbalances, replica_imbalance
from exporter.derive.links import TopologyTracker
from exporter.derive.owners import gpu_owners
from exporter.derive.variance import variance_breakdowns
from exporter.driver.nvml.gpu import GpuReader
from exporter.driver.nvml.library import initialise, open_card
from exporter.driver.nvml.topology import TopologyReader
from exporter.model import (
    AccessState,
    CardFacts,
    CardReading,
    CardState,
    Cause,
    DaemonState,
    Economics,
    EngineReading,
    GpuAssignment,
    GpuLabels,
    KvCacheHeadroom,
    KvTokens,
    LinkHealth,
    MigInstance,
    Missing,
    MultiNodeGpu,
    OwnedProcess,
    Owner,
    Signal,
    Snapshot,
    SourceStatus,
    Straggler,
    Stragglers,
    SxidCount,
    SxidLabels,
    Topology,
    Window,
    WindowFigures,
    XidCount,
    XidLabels,
)
from exporter.model.nic import (
    NearGpu,
    NicEventCount,
    NicEventLabels,
    NicPort,
    NicPortKey,
    NicState,
    PciLocation,
)
from exporter.model.push import PushState
from exporter.model.software import ComponentVersion, NodeSoftware, SharedMemory
from exporter.render.exposition import ExpositionRenderer
from exporter.runtime.diagnosis import Diagnosis
from exporter.runtime.replica import ReplicaConfig, replica_poller
from exporter.sources.replay import Replay
from tests.support.builders import Clock, card, replica
from tests.support.records import replace
from tests.support.simulated_driver import simulated_driver

TESTS = pathlib.Path(__file__).parents[1]
FLAPPING_PORT = NicState(
    port=NicPort(
        key=NicPortKey("mlx5_0", "1"), link_layer="ethernet", state="active", physical_state="link_up", rate=2.5e10,
        interface="ens1f0np0", adapter="MT4129 MT_0000000838", firmware="28.39.2048", pkey="0xffff",
        location=PciLocation(path=("pci0000:60", "0000:60:01.0", "0000:65:00.0"), numa_node=0),
        received=4e12, transmitted=5e12, link_downs=7.0, carrier_changes=15.0, errors={"symbol": 90.0, "ack_timeout": 0.0},
    ),
    max_rate=5e10, is_down=False, nearest=(NearGpu("GPU-0001", "PIX"),),
)  # fmt: skip
DOWN_PORT = NicState(
    port=NicPort(key=NicPortKey("mlx5_1", "1"), link_layer="infiniband", state="down", physical_state="polling"),
    is_down=True,
)
STATES = ("fresh", "idle", "t1", "load", "t2", "after")  # in time order
VALUE = re.compile(r"^([^#].*) (\S+)$", re.MULTILINE)
VOLATILE = re.compile(r"^(?:# (?:HELP|TYPE) )?shardwatch_build_info.*\n", re.MULTILINE)


def recordings() -> dict[str, list[pathlib.Path]]:
    """Group the captures by server, each group in time order."""
    paths_by_name: dict[str, list[pathlib.Path]] = {}
    for path in sorted((TESTS / "captures").glob("*.prom")):
        stem, _, state = path.stem.rpartition("-")
        paths_by_name.setdefault(stem if state in STATES else path.stem, []).append(path)
    order = {state: place for place, state in enumerate(STATES)}
    return {
        stem: sorted(paths, key=lambda p: order.get(p.stem.rpartition("-")[2], 0))
        for stem, paths in paths_by_name.items()
    }


RECORDINGS = recordings()


def rendered(snapshot: Snapshot) -> str:
    page = ExpositionRenderer(openmetrics=False, series=SeriesSet.FULL).render(snapshot)
    assert page.dropped == 0
    # Twelve digits, and nothing below 1e-12: the rest may differ between mathematical libraries.
    return VALUE.sub(_rounded, VOLATILE.sub("", page.body.decode()))


def _rounded(line: re.Match[str]) -> str:
    value = float(line[2])
    return f"{line[1]} {value if abs(value) >= 1e-12 else 0.0:.12g}"


def page_of_recording(stem: str) -> str:
    clock = Clock(1000.0)
    plan = ReplicaConfig(
        name="replica",
        kind="auto",
        interval=5.0,
        windows=(Window("1m", 60.0), Window("5m", 300.0)),
        quantiles=(0.5, 0.95, 0.99, 0.999),
    )
    poller = replica_poller(plan, Replay.of_files(RECORDINGS[stem]), clock=clock, unix_now=lambda: 1.7e9)
    for _ in RECORDINGS[stem]:
        poller.poll()
        clock.tick(30.0)
    state = poller.state
    daemon = DaemonState(
        parse_warnings={(state.status.source, reason): n for reason, n in poller.parse_warnings.items()}
    )
    snapshot = Snapshot(
        at=clock.now,
        unix_time=1.7e9,
        replicas=(state,),
        replica_imbalance=replica_imbalance([state]),
        variance_breakdowns=variance_breakdowns((), [state], ()),
        sources=(state.status,),
        daemon=daemon,
    )
    return rendered(snapshot)


@pytest.mark.parametrize("stem", RECORDINGS)
def test_a_recorded_server_gives_the_same_page_as_ever(stem, golden):
    golden(f"{stem}.prom", page_of_recording(stem))


OWNED = {
    101: OwnedProcess(
        owner=Owner(
            name="ml/chat-a-0/vllm", namespace="ml", pod="chat-a-0", pod_uid=36 * "a", container="vllm",
            container_id=12 * "c", workload="chat-a", workload_type="statefulset", user="root",
        )
    ),
    102: OwnedProcess(owner=Owner(name="job 4711", slurm_job="4711", user="alice"), orphaned=True),
}  # fmt: skip


def page_of_cards(scenario: str) -> str:
    """Read the simulated cards one minute into the scenario, thrice in a few seconds, through the real reader."""
    clock = Clock(60.0)
    pids = {"chat-a": (101,), "chat-b": (102,)}
    driver = simulated_driver(clock, scenario=scenario, fault_at=20.0, pids=pids)
    facts, count = initialise(driver)
    opened = [open_card(driver, index) for index in range(count)]
    readers = [GpuReader(driver, calls, card, facts.driver_version) for calls, card in opened]
    for step in (4.0, 6.0, 10.0):
        clock.tick(step)
        readings = [reader.read(slow=True, clock=clock) for reader in readers]
    joined = TopologyReader(driver).read({card.uuid: calls.handle for calls, card in opened})
    cards = tuple(
        CardState(
            facts=card,
            status=SourceStatus(source=f"gpu:{card.uuid}", up=True, duration=0.001, last_success=clock.now),
            reading=reading,
            last_read_at=reading.at,
            labels=GpuLabels(str(card.index), card.uuid),
            topology=joined[card.uuid],
            pipes=frozenset(pipe for pipe, share in reading.pipe_active.items() if share > 0),
        )
        for (_, card), reading in zip(opened, readings, strict=True)
    )
    assignments = tuple(GpuAssignment(uuid=card.facts.uuid, replica="chat") for card in cards)
    return rendered(
        Snapshot(
            at=clock.now + 0.5,
            unix_time=1.7e9,
            driver=facts,
            cards=cards,
            assignments=assignments,
            owners=gpu_owners(cards, OWNED),
            replicas=(replica("chat"),),
            imbalance=group_imbalances(cards, assignments),
            variance_breakdowns=variance_breakdowns(cards, (replica("chat"),), assignments),
            topology=TopologyTracker().update(cards, assignments),
            sources=tuple(card.status for card in cards),
            daemon=DaemonState(unassigned={"other": "no_processes"}),
        )
    )


@pytest.mark.parametrize("scenario", ["healthy", "pcie", "heat"])
def test_simulated_gpus_read_through_the_real_reader_give_the_same_page_as_ever(scenario, golden):
    golden(f"cards-{scenario}.prom", page_of_cards(scenario))


KEY = "vllm://10.0.0.1:29501"


def test_a_replica_and_a_gpu_that_are_down_give_the_same_page_as_ever(golden):
    """Health that a well node never shows: reasons, failures, restarts, what was left out."""
    down = SourceStatus(source="engine:b", up=False, reason="timeout", hung=True, failures={"timeout": 3}, skipped=2)
    sick = CardReading(
        at=1000.0,
        signals={
            Signal.FAN_SPEED: 0.4,
            Signal.RETIRED_PAGES_SINGLE_BIT: 2.0,
            Signal.RETIRED_PAGES_DOUBLE_BIT: 1.0,
            Signal.RECOVERY_ACTION: 2.0,
            Signal.C2C_MODE: 1.0,
            Signal.C2C_LINKS: 2.0,
            Signal.C2C_LINKS_ACTIVE: 1.0,
            Signal.ECC_MODE: 0.0,
            Signal.ECC_MODE_PENDING: 1.0,
            Signal.ROW_REMAP_BANKS_LOW: 2.0,
            Signal.ROW_REMAP_BANKS_NONE: 1.0,
        },
        nvlink_bit_errors={"effective": 5e-12},
        c2c_errors={"replay": 3.0},
        missing={Signal.POWER: Missing.NO_PERMISSION, Signal.UTILIZATION: Missing.MIG},
    )
    part = MigInstance(number=2, parent="GPU-0001", profile="1g.10gb", gpu_instance=7, compute_instance=0)
    cards = (
        card(0, up=False),
        replace(card(1), reading=sick),
        replace(
            card(2), facts=CardFacts(index=1, uuid="MIG-0002", instance=part), labels=GpuLabels("1:2", "MIG-0002")
        ),
    )
    standing = EngineReading(at=1000.0, engine="vllm", model="m", ranks={}, stale_ranks=frozenset({"gone/0"}))
    kv_tokens = KvTokens(used=900.0, free=100.0, sequences=0.0)
    lapsed = replica(
        "a",
        reading=standing,
        certificate_expires=1.75e9,
        restarts=4,
        frozen=True,
        image="vllm/vllm-openai:v0.11.0@sha256:" + 64 * "0",
        windows={"1m": WindowFigures(seconds=60.0, error_ratio=0.5)},
        headroom=KvCacheHeadroom(ranks={"0": kv_tokens}, total=kv_tokens, seconds_to_full=12.5),
    )
    economics = Economics(
        currency="USD",
        prices={"GPU-0001": 2.5},
        joules_per_token={("a", "1m"): 4.5},
        tokens_per_joule={("a", "1m"): 0.25},
        cost_per_million={("a", "1m"): 4.45},
        cost_per_million_prompt={("a", "1m"): 1.5},
        cost_per_million_processed={("a", "1m"): 1.1},
        revenue_per_hour={("a", "1m"): 3.2},
        revenue_to_cost={("a", "1m"): 1.28},
        idle_seconds={"GPU-0001": 36.0},
        idle_cost={"GPU-0001": 0.025},
    )
    snapshot = Snapshot(
        at=1001.0,
        unix_time=1.7e9,
        cards=cards,
        replicas=(lapsed, replace(replica("b", up=False), status=down)),
        sources=(SourceStatus(source="driver", up=True), cards[0].status, down),
        replica_imbalance={("m", "requests_running"): 1.5},
        economics=economics,
        stragglers=Stragglers(
            judged={"a": True, "b": False},
            found=(Straggler(uuid="GPU-0001", replica="a", cause=Cause.THERMAL, slowdown=1.125),),
        ),
        topology=Topology(
            links={"GPU-0001": LinkHealth(pcie_degraded=True, nvlinks_down=2, fabric_problems=("not_started",))}
        ),
        xids=(
            XidCount(
                labels=XidLabels("0", "GPU-0000", "79", "nvml+kernel_log"),
                xid=79,
                count=1,
                last_unix_time=1.69e9,
                is_whole_gpu=True,
            ),
            XidCount(
                labels=XidLabels("0", "GPU-0000", "95", "nvml+kernel_log"),
                xid=95,
                count=0,
                last_unix_time=None,
                is_whole_gpu=True,
            ),
        ),
        sxids=(
            SxidCount(labels=SxidLabels("0000:c1:00", "12028", "non_fatal"), count=2, last_unix_time=1.69e9),
            SxidCount(labels=SxidLabels("0000:c1:00", "24007", "fatal"), count=1, last_unix_time=1.69e9),
        ),
        nics=(FLAPPING_PORT, DOWN_PORT),
        assignments=(GpuAssignment(uuid="GPU-0000", replica=KEY),),
        multi_node=(
            MultiNodeGpu(uuid="GPU-0000", replica=KEY, key=KEY, engine="vllm", head=False, node_rank=1, nodes=2),
            MultiNodeGpu(
                uuid="GPU-0001", replica="a", key=KEY, engine="vllm", head=True, pipeline_rank="1", tensor_rank="3"
            ),
        ),
        software=NodeSoftware(
            versions=(ComponentVersion("nccl", "2.27.3"), ComponentVersion("torch", "2.8.0+cu128")),
            shared_memory={"GPU-0001": SharedMemory(67108864.0, 4096.0)},
            mps={"GPU-0001": True},
            fabric_manager=False,
        ),
        nic_events=(
            NicEventCount(labels=NicEventLabels("0000:66:00.0", "cable_unplugged"), count=1, last_unix_time=1.69e9),
        ),
        daemon=DaemonState(
            parse_warnings={("engine:a", "duplicate"): 2},
            config_reload_successful=False,
            config_reload_unix_time=1.6e9,
            loop_restarts={"publisher": 1},
            dropped_series=7,
            discovery_limits=frozenset({"targets", "processes"}),
            access=AccessState(
                last_load_successful=False,
                certificate_expires=1.8e9,
                accept_failures=5,
                handshake_failures=2,
                authentication_failures={"missing": 1, "wrong": 3, "limited": 0},
            ),
        ),
        pushes=(
            PushState(
                target="central", samples=132500, sent_bytes=1538100, dropped={"queue_full": 1325, "refused": 25},
                queue_bytes=153810, queue_age=150.0, failing_since=1.6e9,
            ),
        ),
    )  # fmt: skip
    golden("down.prom", rendered(Diagnosis().judge(snapshot)))


def emitted_families() -> set[str]:
    names = set()
    for path in (TESTS / "golden").rglob("*.prom"):
        names |= {line.split()[2] for line in path.read_text().splitlines() if line.startswith("# TYPE ")}
    return names


def test_every_emitted_family_is_in_the_catalogue():
    assert emitted_families() - {metric.name for metric in CATALOG} == set()


def test_every_row_of_the_catalogue_is_emitted_by_some_golden_page():
    assert {metric.name for metric in CATALOG} - emitted_families() == {
        "shardwatch_build_info",  # cut from goldens: volatile
        "shardwatch_pushed_info",  # never on a page
    }


def test_every_golden_page_belongs_to_a_test():
    expected = {*RECORDINGS, "cards-healthy", "cards-pcie", "cards-heat", "down"}
    assert {path.stem for path in (TESTS / "golden").glob("*.prom")} == expected

"""The simulated node from outside: pages like the real one's, processes that end, cards that the real collector reads."""

from __future__ import annotations

import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.utils import floatToGoString

from exporter.driver.nvml.fields import POLICIES
from exporter.driver.nvml.gpu import GpuReader
from exporter.driver.nvml.library import initialise, load_driver, open_card
from exporter.errors import ShardwatchError
from exporter.simulate import node, nvml
from exporter.simulate.engine import read_process_stats
from exporter.simulate.node import NAMES, SimulatedNode
from exporter.simulate.node_spec import NodeSpec
from exporter.simulate.scenarios import find
from exporter.simulate.vllm_page import number, render
from exporter.simulate.world import World
from tests.support.records import replace
from tests.support.waiting import CEILING, until, wait_until

CAPTURE = os.path.join(pathlib.Path(__file__).parents[2], "captures", "vllm-0.32.0-real-cpu-load.prom")
TWO_RANKS = os.path.join(pathlib.Path(__file__).parents[2], "captures", "vllm-0.32.0-dp2-real-cpu-load.prom")
LABEL = re.compile(r'([A-Za-z_][A-Za-z0-9_]*)="([^"]*)"')


def layout(text: str, families: str = "vllm:") -> list[tuple[str, tuple[str, ...], tuple[tuple[str, str], ...]]]:
    """What must not differ: sample names, label names in order, and the values that are part of the layout."""
    rows = []
    for line in text.splitlines():
        if line.startswith(families):
            name = re.split(r"[{ ]", line)[0]
            labels = LABEL.findall(line.rpartition("}")[0])
            fixed = ("le", "reason", "finished_reason", "source", "sleep_state")
            rows.append((name, tuple(key for key, _ in labels), tuple(pair for pair in labels if pair[0] in fixed)))
    return rows


def declared(text: str, prefix: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith(f"# TYPE {prefix}")]


def page_of(world: World, number: int = 0) -> str:
    return render(world.replicas[number], read_process_stats(), 1.79e9)


def short_world(seconds: float = 60.0) -> World:
    """A replica whose longest sequence has as many buckets as the captured server's."""
    scenario = find("mixed")
    spec = replace(scenario.replicas[0], model=replace(scenario.replicas[0].model, max_model_len=512))
    return World(replace(scenario, replicas=(spec,)), seed=1).advance_to(seconds)


def test_the_page_has_the_layout_of_the_real_server() -> None:
    with open(CAPTURE, encoding="utf-8") as file:
        real = file.read()
    ours = page_of(short_world())
    assert layout(ours) == layout(real)
    for prefix in ("vllm:", "process_", "python_", "http_"):
        assert declared(ours, prefix) == declared(real, prefix)
    assert declared(ours, "") == declared(real, "")


def test_the_http_families_have_the_buckets_of_the_real_server() -> None:
    with open(CAPTURE, encoding="utf-8") as file:
        real = set(layout(file.read(), "http_"))
    assert set(layout(page_of(short_world(300.0)), "http_")) == real


def test_two_ranks_have_the_series_of_a_real_server_with_two_ranks() -> None:
    with open(TWO_RANKS, encoding="utf-8") as file:
        real = {row for row in layout(file.read()) if not row[0].endswith("_created")}
    scenario = find("skew")
    spec = replace(scenario.replicas[0], model=replace(scenario.replicas[0].model, max_model_len=512))
    text = page_of(World(replace(scenario, replicas=(spec,))).advance_to(5.0))
    assert {row for row in layout(text) if not row[0].endswith("_created")} == real
    assert set(re.findall(r'vllm:num_requests_running\{engine="(\d)"', text)) == set("01234567")


@pytest.mark.parametrize("name", [name for name in NAMES if name != "idle"])
def test_the_page_parses_and_says_what_the_world_says(name: str) -> None:
    world = World(name, seed=2).advance_to(40.0)
    for number_, replica in enumerate(world.replicas):
        samples = {}
        for family in text_string_to_metric_families(page_of(world, number_)):
            for sample in family.samples:
                key = (sample.name, tuple(sorted(sample.labels.items())))
                assert key not in samples, f"{key} stands twice"
                samples[key] = sample.value
        for rank, state in enumerate(replica.ranks):
            labels = {"engine": str(rank), "model_name": replica.spec.model.name}

            def of(sample: str, labels=labels, **more: str) -> float:
                return samples[f"vllm:{sample}", tuple(sorted((labels | more).items()))]

            assert of("num_requests_running") == state.report.running
            assert of("kv_cache_usage_perc") == state.report.kv_usage
            assert of("generation_tokens_total") == state.metrics.generation_tokens > 0
            assert of("request_success_total", finished_reason="stop") == state.metrics.finished["stop"]
            assert of("e2e_request_latency_seconds_bucket", le="+Inf") == state.metrics.total_finished
            assert of("e2e_request_latency_seconds_sum") == pytest.approx(state.metrics.request.sum)
            assert of("time_to_first_token_seconds_bucket", le="0.25") == sum(
                state.metrics.time_to_first_token.counts[:9]
            )
            assert of("prompt_tokens_by_source_total", source="local_cache_hit") == state.metrics.cached_tokens


def test_buckets_on_the_page_are_cumulative_and_never_fall() -> None:
    world, previous = World("skew", seed=2), {}
    for second in (5.0, 15.0, 30.0):
        current = {}
        for family in text_string_to_metric_families(page_of(world.advance_to(second))):
            above: dict[tuple, float] = {}
            for sample in family.samples:
                if family.type == "histogram" and sample.name.endswith("_bucket"):
                    series = tuple(pair for pair in sorted(sample.labels.items()) if pair[0] != "le")
                    assert sample.value >= above.get((sample.name, series), 0.0)
                    above[sample.name, series] = sample.value
                if family.type in {"counter", "histogram"} and sample.name.startswith("vllm:"):
                    current[sample.name, tuple(sorted(sample.labels.items()))] = sample.value
        assert all(current[key] >= value for key, value in previous.items())
        previous = current
    assert len(previous) > 1000


@pytest.mark.parametrize("value", [0.0, 1.0, 0.001, 12.5, 999_999.0, 1e6, 1.5e6, 123456789.25, 1.79520632609e9, -3.0])
def test_numbers_are_written_as_the_client_library_writes_them(value: float) -> None:
    assert number(value) == floatToGoString(value)


def test_infinite_numbers_are_written_as_the_client_library_writes_them() -> None:
    for value in (float("inf"), float("-inf"), float("nan")):
        assert number(value) == floatToGoString(value)


def test_a_plan_survives_the_command_line() -> None:
    plan = NodeSpec(scenario="skew", seed=3, node=1, speed=2.0, fault_at=4.0, pids={"chat": (11, 12)})
    assert NodeSpec.loads(plan.dumps()) == plan


@pytest.mark.parametrize("text", ["[]", '{"scenery": 1}', "no"])
def test_a_plan_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        NodeSpec.loads(text)


@contextmanager
def driver(**plan: object) -> Iterator[object]:
    loaded = load_driver("exporter.simulate.nvml", NodeSpec(**plan).dumps())
    loaded.nvmlInit()
    try:
        yield loaded
    finally:
        loaded.nvmlShutdown()


def aged(seconds: float, **plan: object) -> dict[str, object]:
    return plan | {"start": time.monotonic() - seconds, "started_unix": time.time() - seconds}


def read(loaded: object, index: int):
    calls, facts = open_card(loaded, index)
    reader = GpuReader(loaded, calls, facts, loaded.nvmlSystemGetDriverVersion())
    reader.read(slow=True)
    time.sleep(0.6)
    return facts, reader.read(slow=True)


def test_the_real_collector_reads_every_signal_that_such_a_gpu_has() -> None:
    with driver(**aged(30.0, scenario="healthy", pids={"chat-a": (41,), "chat-b": (42,)})) as loaded:
        versions, count = initialise(loaded)
        loaded.nvmlShutdown()
        facts, reading = read(loaded, 5)
    assert (versions.driver_version, versions.cuda_version, count) == ("580.95.05", "13.0", 8)
    assert facts.name == "NVIDIA H100 80GB HBM3" and facts.numa_node == 1
    assert re.fullmatch(r"GPU-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", facts.uuid)
    assert {signal.value for signal in reading.missing} == {
        "c2c_mode",
        "fan_speed",
        "nvlink_crc_data",
        "nvlink_crc_flit",
        "retired_pages_double_bit",
        "retired_pages_pending",
        "retired_pages_single_bit",
    }
    signals = {signal.value: value for signal, value in reading.signals.items()}
    assert 0.5 < signals["utilization"] < 1.0
    assert signals["memory_used"] + signals["memory_free"] + signals["memory_reserved"] == signals["memory_total"]
    assert signals["memory_used"] / signals["memory_total"] == pytest.approx(0.91, abs=0.01)
    assert signals["temperature_margin"] == pytest.approx(87.0 - signals["temperature_gpu"], abs=1.0)
    assert 100.0 < signals["power"] < signals["power_limit"] == signals["power_limit_requested"] == 700.0
    assert (signals["power_limit_min"], signals["power_limit_max"]) == (200.0, 700.0)
    assert signals["bar1_total"] == signals["bar1_used"] + signals["bar1_free"] == 2.0**37
    assert signals["vgpu_licensed"] == 0.0
    assert signals["energy"] > 1e8 and signals["clock_sm"] == 1.98e9
    assert signals["nvlink_transmit"] > 1e9 and signals["pcie_transmit"] > 1e6
    assert len(reading.nvlink_up) == 18 and all(reading.nvlink_up.values())
    assert [process.pid for process in reading.processes] == [42]
    assert set(reading.clock_event_seconds) >= {"sw_power_cap", "sw_thermal_slowdown"}
    assert reading.policy_seconds == dict.fromkeys(POLICIES, 0.0)


def test_a_gpu_without_links_says_so() -> None:
    with driver(**aged(20.0, scenario="pcie")) as loaded:
        facts, reading = read(loaded, 3)
    assert facts.name == "NVIDIA H100 PCIe"
    assert not any(reading.nvlink_up.values())
    assert {"nvlink_transmit", "nvlink_receive"} <= {signal.value for signal in reading.missing}
    assert reading.signals["pcie_transmit"] > 1e9


def test_a_lost_gpu_answers_15_and_the_others_go_on() -> None:
    with driver(**aged(60.0, scenario="hang", fault_at=10.0)) as loaded:
        for call in (loaded.nvmlDeviceGetPowerUsage, loaded.nvmlDeviceGetHandleByIndex, loaded.nvmlDeviceGetUUID):
            with pytest.raises(nvml.NVMLError) as caught:
                call(6)
            assert caught.value.value == nvml.NVML_ERROR_GPU_IS_LOST
        assert loaded.nvmlDeviceGetCount() == 8
        _, reading = read(loaded, 7)
        assert reading.signals["utilization"] == pytest.approx(1.0, abs=0.02)


def test_a_driver_that_is_not_initialised_says_so() -> None:
    nvml.configure("")
    with pytest.raises(nvml.NVMLError) as caught:
        nvml.nvmlDeviceGetCount()
    assert caught.value.value == nvml.NVML_ERROR_UNINITIALIZED
    with pytest.raises(nvml.NVMLError):
        nvml.nvmlShutdown()


def test_an_old_driver_lacks_the_accumulated_reasons_of_a_new_one() -> None:
    def codes(node_: int) -> list[int]:
        with driver(scenario="drift", node=node_) as loaded:
            return [
                item.nvmlReturn for item in loaded.nvmlDeviceGetFieldValues(0, [74, 251, 269, (138, 0), (202, 0)])
            ]

    assert codes(0) == [0, 3, 0, 0, 3]
    assert codes(1) == [0, 3, 3, 0, 3]


def test_samples_are_those_since_the_last_question() -> None:
    with driver(**aged(20.0, scenario="healthy")) as loaded:
        kind, everything = loaded.nvmlDeviceGetSamples(0, 1, 0)
        stamps = [sample.timeStamp for sample in everything]
        assert kind == 1 and stamps == sorted(set(stamps)) and len(stamps) == 80
        assert time.time() - stamps[-1] / 1e6 < 5.0
        _, fresh = loaded.nvmlDeviceGetSamples(0, 1, stamps[-3])
        assert [sample.timeStamp for sample in fresh][:2] == stamps[-2:]
        with pytest.raises(nvml.NVMLError) as caught:
            loaded.nvmlDeviceGetSamples(0, 1, stamps[-1] + 3_600_000_000)
        assert caught.value.value == nvml.NVML_ERROR_NOT_FOUND


def fetch(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=10.0) as answer:
        return answer.read()


def alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii") as file:
            return file.read().rpartition(")")[2].split()[0] not in {"Z", "X"}
    except OSError:
        return False


def all_gone(pids: list[int], seconds: float = CEILING) -> bool:
    return wait_until(lambda: not any(map(alive, pids)), seconds)


def test_a_node_serves_its_engines_and_leaves_nothing_behind() -> None:
    with SimulatedNode("skew", seed=1, speed=20.0) as running:
        ((name, url),) = running.engine_urls
        assert name == "chat" and url.startswith("http://127.0.0.1:")
        base = url.removesuffix("/metrics")
        tokens = r'generation_tokens_total\{engine="0".*?\} (\S+)'
        until(lambda: float(re.search(tokens, fetch(url).decode())[1]) > 0)
        assert json.loads(fetch(base + "/version")) == {"version": "0.32.0"}
        assert fetch(base + "/health") == b""
        with pytest.raises(urllib.error.HTTPError) as caught:
            fetch(base + "/nothing")
        caught.value.close()
        ranks = NodeSpec.loads(running.driver_options).pids["chat"]
        assert len(set(ranks)) == 8
        for pid in ranks:
            with open(f"/proc/{pid}/stat", encoding="ascii") as file:
                assert int(file.read().rpartition(")")[2].split()[1]) == running.pids[0]
        with open(f"/proc/{ranks[3]}/cmdline", "rb") as file:
            assert file.read() == b"VLLM::EngineCore_DP3\0"
        processes = [*running.pids, *ranks]
        assert all(map(alive, processes))
    assert all_gone(processes)
    running.stop()


def test_engines_and_gpus_live_in_the_same_world() -> None:
    with SimulatedNode("healthy", seed=9) as running:
        url, tokens = running.engine_urls[1][1], [0.0]

        def generated() -> bool:
            tokens[0] = float(re.search(r"generation_tokens_total\{.*?\} (\S+)", fetch(url).decode())[1])
            return tokens[0] > 0

        until(generated)
        own, token_counts, now = running.node_spec.world(), {0.0}, 0
        while max(token_counts) < tokens[0] and now < 2400:
            now += 1
            token_counts.add(own.advance_to(now / 4).replicas[1].ranks[0].metrics.generation_tokens)
        assert tokens[0] in token_counts


KEEPER = """
import sys, time
from exporter.simulate.node import SimulatedNode
node = SimulatedNode("mixed").start()
pids = [*node.pids, *(pid for ranks in node.node_spec.pids.values() for pid in ranks)]
print(*pids, flush=True)
time.sleep(60)
"""


def test_engines_end_when_their_parent_is_killed() -> None:
    root = str(pathlib.Path(__file__).parents[3])
    keeper = subprocess.Popen(
        [sys.executable, "-c", KEEPER], stdout=subprocess.PIPE, env=os.environ | {"PYTHONPATH": root}
    )
    try:
        pids = [int(pid) for pid in keeper.stdout.readline().split()]
        assert len(pids) == 4 and all(map(alive, pids))
    finally:
        keeper.send_signal(signal.SIGKILL)
        keeper.wait()
        keeper.stdout.close()
    assert all_gone(pids)


def test_an_engine_that_does_not_start_is_an_error_and_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = SimulatedNode("mixed")
    launch, started = broken._launch, []

    def second_fails(spec):
        engine = launch(spec if not started else replace(spec, name="nobody"))
        started.append(engine.pid)
        return engine

    monkeypatch.setattr(broken, "_launch", second_fails)
    with pytest.raises(ShardwatchError, match="engine code ended"):
        broken.start()
    assert len(started) == 2 and all_gone(started)


def test_an_engine_that_stays_silent_is_given_up_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node, "START_SECONDS", 0.2)
    monkeypatch.setattr(node, "STOP_SECONDS", 0.2)
    silent = SimulatedNode("pcie")
    command = [sys.executable, "-c", "import time; time.sleep(60)"]
    engines = []

    def mute(spec):
        engines.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE))
        return engines[-1]

    monkeypatch.setattr(silent, "_launch", mute)
    with pytest.raises(ShardwatchError, match="was not ready within"):
        silent.start()
    assert all_gone([engine.pid for engine in engines])

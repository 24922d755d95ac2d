"""The simulated world: determined, conserving, consistent, and with the signature that each scenario promises."""

from __future__ import annotations

from functools import cache

import pytest

from exporter.simulate.gpu import POWER_CAP, SW_THERMAL, SimulatedGpu
from exporter.simulate.load import Load
from exporter.simulate.products import GIB, H100, LLAMA_8B
from exporter.simulate.rank_metrics import HistogramState, RankMetrics, length_bounds
from exporter.simulate.records import ReplicaSpec, Scenario, Traffic
from exporter.simulate.scenarios import SCENARIOS, find
from exporter.simulate.world import STEP, World
from tests.support.records import replace

NAMES = [scenario.name for scenario in SCENARIOS]
BUSY = [name for name in NAMES if name != "idle"]


@cache
def lived(name: str, seconds: float, seed: int = 1) -> World:
    """A world that has lived; shared, so nobody may advance it."""
    return World(name, seed=seed).advance_to(seconds)


def ranks(world: World):
    return [rank for replica in world.replicas for rank in replica.ranks]


def histograms(metrics: RankMetrics) -> dict[str, HistogramState]:
    return {
        name: value for name in RankMetrics.__slots__ if isinstance(value := getattr(metrics, name), HistogramState)
    }


def numbers(world: World) -> list[object]:
    found: list[object] = []
    for rank in ranks(world):
        report = rank.report
        found += [
            report.running,
            report.waiting,
            report.kv_usage,
            rank.metrics.generation_tokens,
            rank.metrics.finished.copy(),
        ]
        found += [(each.counts.copy(), each.sum) for each in histograms(rank.metrics).values()]
    for card in world.gpus:
        found += [card.utilization, card.power, card.energy, card.temperature, card.clock, card.memory_used]
        found += [card.pcie_sent, card.nvlink_received, list(card.samples), card.identity, card.lost]
    return found


def mean_utilization(world: World) -> list[float]:
    return [100 * sum(sample[1] for sample in card.samples) / len(card.samples) for card in world.gpus]


@pytest.mark.parametrize("name", NAMES)
def test_two_copies_of_a_world_agree_however_they_got_there(name: str) -> None:
    steady, sudden = World(name, seed=7), World(name, seed=7)
    for second in range(60):
        steady.advance_to(second + 0.9)
    steady.advance_to(60.1)
    sudden.advance_to(60.24, budget=0.01)
    for _ in range(1000):
        if sudden.advance_to(60.24, budget=0.01).now == 60.0:
            break
    assert steady.now == sudden.now == 60.0
    assert numbers(steady) == numbers(sudden)


def test_another_seed_or_node_is_another_world() -> None:
    world = lived("healthy", 30.0)
    assert numbers(world) != numbers(World("healthy", seed=2).advance_to(30.0))
    assert {card.identity for card in world.gpus}.isdisjoint(
        card.identity for card in World("healthy", seed=1, node=1).gpus
    )


def test_a_world_never_goes_back_and_requests_no_more_than_its_budget() -> None:
    world = World("healthy").advance_to(10.0)
    before = numbers(world)
    world.advance_to(3.0)
    world.advance_to(1e9, budget=0.0)
    assert numbers(world) == before


@pytest.mark.parametrize("name", BUSY)
def test_every_request_is_somewhere(name: str) -> None:
    world = World(name, seed=3)
    for second in range(0, 150, 10):
        world.advance_to(second)
        for rank in ranks(world):
            metrics = rank.metrics
            assert metrics.arrived == rank.running + len(rank.waiting) + metrics.total_finished + metrics.aborted
    assert sum(rank.metrics.arrived for rank in ranks(world)) > 100


def test_an_idle_node_has_no_requests_and_cool_gpus() -> None:
    world = World("idle", seed=3).advance_to(120.0)
    assert [rank.metrics.arrived for rank in ranks(world)] == [0, 0]
    assert max(mean_utilization(world)) == 0


@pytest.mark.parametrize("name", BUSY)
def test_histograms_agree_with_counters(name: str) -> None:
    for rank in ranks(lived(name, 120.0)):
        metrics = rank.metrics
        finished = metrics.total_finished
        whole = {
            "prompt_length",
            "generation_length",
            "longest_generation",
            "max_tokens",
            "computed_length",
            "choices",
        }
        whole |= {"time_per_token", "request", "queue", "inference", "prefill", "decode", "request_preemptions"}
        for key, buckets in histograms(metrics).items():
            assert sum(buckets.counts) == buckets.count
            if key in whole:
                assert buckets.count == finished, key
        unfinished = sum(request.produced for request in (*rank.decoding, *rank.prefilling))
        assert metrics.generation_tokens >= metrics.generation_length.sum + unfinished > 0
        # every token but a request's first comes a while after another one
        assert metrics.inter_token.count == metrics.generation_tokens - metrics.time_to_first_token.count
        assert metrics.request.sum == pytest.approx(metrics.queue.sum + metrics.prefill.sum + metrics.decode.sum)
        assert metrics.inference.sum == pytest.approx(metrics.prefill.sum + metrics.decode.sum)
        assert metrics.cached_tokens <= metrics.prefix_hits <= metrics.prefix_queries
        assert metrics.prompt_tokens <= metrics.prefix_queries
        assert (
            metrics.http_fine.count == metrics.http_coarse.count == metrics.http_answered + metrics.finished["error"]
        )


def test_generated_tokens_are_those_of_finished_running_and_departed_requests() -> None:
    scenario = find("mixed")
    faithful = tuple(
        replace(spec, traffic=replace(spec.traffic, cancel_ratio=0.0, client_timeout=1e9))
        for spec in scenario.replicas
    )
    world = World(replace(scenario, replicas=faithful), seed=5).advance_to(200.0)
    for rank in ranks(world):
        running = sum(request.produced for request in (*rank.decoding, *rank.prefilling))
        assert rank.metrics.aborted == 0
        assert rank.metrics.generation_tokens == rank.metrics.generation_length.sum + running
        live = sum(one.first_token - one.arrival for one in (*rank.decoding, *rank.prefilling) if one.produced)
        assert rank.metrics.time_to_first_token.sum == pytest.approx(
            rank.metrics.queue.sum + rank.metrics.prefill.sum + live
        )


@pytest.mark.parametrize("name", ["healthy", "mixed", "oom", "skew"])
def test_the_blocks_in_use_are_those_of_live_requests_and_their_shared_beginnings(name: str) -> None:
    world = World(name, seed=6)
    for second in range(20, 120, 20):
        world.advance_to(second)
        for rank in ranks(world):
            live = (*rank.decoding, *rank.prefilling)
            block = rank.replica.block
            own = sum(-(-(one.prompt - one.shared + one.produced) // block) for one in live)
            shared = sum({one.prefix: one.shared // block for one in live}.values())
            assert rank.report.kv_usage == pytest.approx((own + shared) / (rank.blocks - 1))


@pytest.mark.parametrize("name", ["healthy", "skew", "heat"])
def test_counters_never_fall(name: str) -> None:
    world = World(name, seed=4)
    previous: list[float] = []
    for second in range(0, 60, 2):
        world.advance_to(second)
        now: list[float] = []
        for rank in ranks(world):
            metrics = rank.metrics
            now += [
                metrics.arrived,
                metrics.aborted,
                metrics.prompt_tokens,
                metrics.generation_tokens,
                metrics.prefix_hits,
            ]
            now += [metrics.http_answered, *metrics.finished.values()]
            for buckets in histograms(metrics).values():
                now += [*buckets.counts, buckets.sum]
        for card in world.gpus:
            now += [card.energy, card.pcie_sent, card.nvlink_sent, card.power_cap_seconds, card.thermal_seconds]
        assert not previous or all(new >= old for old, new in zip(previous, now, strict=True))
        previous = now


def test_energy_is_the_integral_of_power() -> None:
    world = World("heat", seed=2)
    start = [card.energy for card in world.gpus]
    total = [0.0] * len(world.gpus)
    for step in range(1, 241):
        world.advance_to(step * STEP)
        total = [joules + card.power * STEP for joules, card in zip(total, world.gpus, strict=True)]
    for before, drawn, card in zip(start, total, world.gpus, strict=True):
        assert card.energy - before == pytest.approx(drawn)
        assert drawn > 60.0 * card.product.idle_power


def test_throttle_time_is_the_time_that_its_reason_was_shown() -> None:
    world = World("heat", seed=2)
    shown = 0
    for step in range(1, 4 * 200):
        world.advance_to(step * STEP)
        shown += bool(world.gpus[2].reasons & SW_THERMAL)
    assert world.gpus[2].thermal_seconds == pytest.approx(shown * STEP)
    assert 0.0 < world.gpus[2].thermal_seconds <= world.now


def test_a_gpu_at_its_power_limit_slows_down_and_says_so() -> None:
    card = SimulatedGpu(replace(H100, power_limit=400.0), 0, "x")
    for step in range(40):
        card.advance(step * STEP, STEP, Load(utilization=1.0, prefill=1.0))
    assert card.reasons & POWER_CAP
    assert card.power == pytest.approx(400.0)
    assert card.clock < H100.sm_clock
    assert card.power_cap_seconds == pytest.approx(40 * STEP)


def test_temperature_follows_power_slowly() -> None:
    card = SimulatedGpu(H100, 0, "x")
    cold = card.temperature
    card.advance(STEP, STEP, Load(utilization=1.0, prefill=0.5))
    assert card.temperature - cold < 1.0
    for step in range(4 * 300):
        card.advance(step * STEP, STEP, Load(utilization=1.0, prefill=0.5))
    assert 50.0 < card.temperature < 75.0


def test_a_healthy_node_is_calm() -> None:
    world = lived("healthy", 300.0)
    for rank in ranks(world):
        metrics = rank.metrics
        beyond_one_second = metrics.time_to_first_token.count - sum(metrics.time_to_first_token.counts[:12])
        assert beyond_one_second / metrics.time_to_first_token.count < 0.01
        assert 0.4 < metrics.prefix_hits / metrics.prefix_queries < 0.9
        assert 0.02 < rank.report.kv_usage < 0.6
        assert metrics.finished["error"] == metrics.preemptions == 0
        assert metrics.finished["stop"] > metrics.finished["length"] > 0
    for card, utilization in zip(world.gpus, mean_utilization(world), strict=True):
        assert 70.0 < utilization < 98.0
        assert 40.0 < card.temperature < 70.0
        assert 150.0 < card.power < 700.0
        assert card.power_cap_seconds < 30.0
        assert card.nvlink_sent > 100 * GIB


def test_mixed_leaves_two_gpus_idle() -> None:
    world = lived("mixed", 120.0)
    utilization = mean_utilization(world)
    assert all(percent > 60.0 for percent in utilization[:6])
    assert utilization[6:] == [0.0, 0.0]
    assert world.gpus[7].power < 90.0
    assert world.gpus[7].memory_used < GIB
    assert {replica.spec.model.name for replica in world.replicas} == {"llama-3.3-70b-instruct", "qwen2.5-coder-32b"}


def test_pcie_shows_the_utilisation_of_the_field_and_is_slower_than_four_linked_gpus() -> None:
    world = lived("pcie", 180.0)
    for got, wanted in zip(mean_utilization(world), (98, 65, 60, 58, 55, 52, 48, 45), strict=True):
        assert got == pytest.approx(wanted, abs=2.5)
    assert all(card.nvlink_sent == 0.0 for card in world.gpus)
    assert all(card.pcie_sent > GIB for card in world.gpus)
    eight = ranks(world)[0].metrics.inter_token
    four = ranks(lived("healthy", 300.0))[0].metrics.inter_token
    assert eight.sum / eight.count > 1.5 * four.sum / four.count


def test_skew_falls_from_the_first_gpu_to_the_last_and_the_queues_say_why() -> None:
    world = lived("skew", 120.0)
    utilization = mean_utilization(world)
    for got, wanted in zip(utilization, (98, 91, 84, 77, 69, 62, 55, 48), strict=True):
        assert got == pytest.approx(wanted, abs=7.0)
    assert utilization[0] == pytest.approx(98.0, abs=1.5)
    assert utilization[7] == pytest.approx(48.0, abs=4.0)
    waiting = [rank.report.waiting for rank in world.replicas[0].ranks]
    assert waiting[0] > 30
    assert waiting[4:] == [0, 0, 0, 0]


def test_oom_fills_one_gpu_that_is_not_the_first_and_requests_fail() -> None:
    world = World("oom", seed=1).advance_to(10.0)
    shares = [(card.memory_used + card.product.reserved) / card.product.memory for card in world.gpus]
    assert shares == [pytest.approx(0.87, abs=0.015)] * 8
    assert sum(rank.metrics.finished["error"] for rank in ranks(world)) == 0
    world.advance_to(300.0)
    shares = [(card.memory_used + card.product.reserved) / card.product.memory for card in world.gpus]
    assert shares.pop(5) == pytest.approx(1.0, abs=0.001)
    assert shares == [pytest.approx(0.87, abs=0.015)] * 7
    healthy, failing = (rank.metrics for rank in ranks(world))
    assert healthy.finished["error"] == 0
    assert failing.finished["error"] / failing.total_finished > 0.03


def test_hang_loses_a_gpu_freezes_its_replica_and_leaves_the_other_alone() -> None:
    world = World("hang", seed=1, fault_at=20.0)
    world.advance_to(19.0)
    assert not any(card.lost for card in world.gpus)
    world.advance_to(26.0)
    assert world.gpus[6].nvlink_replays > 0 and not world.gpus[6].lost
    world.advance_to(30.0)
    well, hung = ranks(world)
    assert [card.index for card in world.gpus if card.lost] == [6]
    frozen = (hung.report, hung.metrics.generation_tokens, hung.metrics.total_finished, hung.metrics.http_answered)
    assert hung.report.running > 0 and hung.report.waiting > 0
    moved = well.metrics.generation_tokens
    world.advance_to(90.0)
    assert (
        hung.report,
        hung.metrics.generation_tokens,
        hung.metrics.total_finished,
        hung.metrics.http_answered,
    ) == frozen
    assert well.metrics.generation_tokens > moved + 1000
    assert [round(card.utilization, 1) for card in world.gpus[4:]] == [1.0, 1.0, 0.0, 1.0]
    # ranks that spin in a collective draw less than ranks that work
    assert world.gpus[4].power < 0.8 * world.gpus[0].power


def test_a_gpu_that_comes_back_restarts_its_replica_with_empty_counters() -> None:
    world = World("hang", seed=1, fault_at=10.0, fault_until=60.0).advance_to(59.5)
    replica = world.replicas[1]
    before = replica.ranks[0].metrics.generation_tokens
    assert replica.frozen and replica.created == 0.0
    world.advance_to(62.0)
    assert not replica.frozen and not world.gpus[6].lost
    assert replica.created == 60.0
    assert replica.ranks[0].metrics.generation_tokens < before
    world.advance_to(90.0)
    assert replica.ranks[0].metrics.total_finished > 0
    assert replica.refused <= 2


def test_drift_gives_two_nodes_different_software_and_speed() -> None:
    one, other = World("drift", node=0).advance_to(60.0), World("drift", node=1).advance_to(60.0)
    assert one.software.driver != other.software.driver
    assert one.software.cuda != other.software.cuda
    assert one.software.engine != other.software.engine
    quick, slow = (ranks(world)[0].metrics.inter_token for world in (one, other))
    assert slow.sum / slow.count > 1.05 * quick.sum / quick.count


def test_heat_slows_the_whole_group_and_the_victims_draw_less() -> None:
    world = lived("heat", 300.0)
    hot, victims, others = world.gpus[2], (0, 1, 3), (4, 5, 6, 7)
    assert hot.thermal_seconds > 60.0 and hot.clock < 0.95 * hot.product.sm_clock
    assert hot.temperature > max(world.gpus[card].temperature for card in victims) + 20.0
    assert all(world.gpus[card].clock == hot.product.sm_clock for card in victims)
    slow, quick = (rank.metrics.inter_token for rank in ranks(world))
    assert slow.sum / slow.count > 1.1 * quick.sum / quick.count
    assert all(world.gpus[card].thermal_seconds == 0.0 for card in (*victims, *others))
    spared = World("heat", seed=1, fault_at=1e9).advance_to(300.0)
    before = [(world.gpus[card].energy, spared.gpus[card].energy) for card in victims]
    still_hot = World("heat", seed=1).advance_to(600.0)
    spared.advance_to(600.0)
    for card, (drawn, usual) in zip(victims, before, strict=True):
        # as busy as ever, and yet less work done
        assert mean_utilization(still_hot)[card] >= mean_utilization(spared)[card] - 1.0
        assert still_hot.gpus[card].energy - drawn < 0.97 * (spared.gpus[card].energy - usual)


def test_a_full_cache_preempts_and_still_loses_no_token() -> None:
    tight = ReplicaSpec(
        name="tight",
        model=replace(LLAMA_8B, weights=int(14 * 10**9), max_model_len=8192),
        traffic=Traffic(rate=6.0, output=700, prefixes=60, client_timeout=1e9, cancel_ratio=0.0),
        ranks=((0,),),
        memory_fraction=0.2,
    )
    world = World(Scenario(name="tight", summary="", replicas=(tight,), product=H100), seed=1).advance_to(150.0)
    rank = ranks(world)[0]
    running = sum(request.produced for request in (*rank.decoding, *rank.prefilling, *rank.waiting))
    assert rank.metrics.preemptions > 0
    assert rank.report.kv_usage > 0.8
    assert rank.metrics.generation_tokens == rank.metrics.generation_length.sum + running
    assert rank.metrics.inter_token.count == rank.metrics.generation_tokens - rank.metrics.time_to_first_token.count
    assert rank.metrics.request_preemptions.sum > 0


def test_a_model_that_does_not_fit_is_refused() -> None:
    big = ReplicaSpec(name="big", model=LLAMA_8B, traffic=Traffic(rate=1.0), ranks=((0,),), memory_fraction=0.2)
    with pytest.raises(ValueError, match="does not fit on 1 GPUs"):
        World(Scenario(name="big", summary="", replicas=(big,), product=H100))


def test_an_unknown_scenario_is_refused_with_the_known_names() -> None:
    with pytest.raises(KeyError, match=r"no scenario is called 'sunny'.*healthy, mixed, idle, pcie"):
        World("sunny")


def test_a_value_on_a_bound_counts_below_it() -> None:
    buckets = HistogramState((1.0, 2.0))
    for value in (1.0, 1.5, 2.0, 9.0):
        buckets.observe(value)
    assert buckets.counts == [1, 2, 1]
    assert length_bounds(500) == (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0)

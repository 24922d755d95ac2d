"""Speculative decoding, tiers of the KV cache, disaggregation and adapters, under one name for all engines."""

from __future__ import annotations

import pytest

from exporter.model import Detail, Quantity
from tests.support.builders import Clock
from tests.support.engine_pages import interpret, make_poller, page, polled

SPECULATING = "vllm-0.15.1-generated-v1-spec-t2"


def test_vllm_counts_what_it_drafts_and_what_is_accepted_by_position():
    reading = interpret(page(SPECULATING))
    numbers = reading.ranks["0"]
    drafts, drafted, accepted = (
        numbers[name] for name in (Quantity.SPEC_DRAFTS, Quantity.SPEC_DRAFT_TOKENS, Quantity.SPEC_ACCEPTED_TOKENS)
    )
    assert 0 < drafts <= drafted >= accepted
    positions = reading.details[Detail.SPEC_POSITIONS]["0"]
    assert sum(positions.values()) == accepted
    assert list(positions.values()) == sorted(positions.values(), reverse=True)


def test_an_engine_that_does_not_speculate_says_nothing_of_it():
    reading = interpret(page("vllm-0.32.0-real-cpu-after"))
    assert Detail.SPEC_POSITIONS not in reading.details
    assert Quantity.SPEC_DRAFTS not in reading.ranks["0"]


def test_prompt_tokens_by_source_add_up_to_all_of_them():
    reading = interpret(page("vllm-0.32.0-dp2-real-cpu-after"))
    for rank, sources in reading.details[Detail.PROMPT_SOURCES].items():
        assert sum(sources.values()) == pytest.approx(reading.ranks[rank][Quantity.PROMPT_TOKENS])


def test_waiting_requests_by_reason_add_up_to_all_that_wait():
    reading = interpret(page("vllm-0.32.0-dp2-real-cpu-load"))
    for rank, reasons in reading.details[Detail.WAITING_REASONS].items():
        assert reasons.keys() == {"capacity", "deferred"}
        assert sum(reasons.values()) == reading.ranks[rank][Quantity.REQUESTS_WAITING]


OFFLOADED = {"CPU_to_GPU": 300.0, "GPU_to_CPU": 700.0}


@pytest.mark.parametrize(
    "rows",
    [
        [
            ('total_bytes_total{engine="0",transfer_type="CPU_to_GPU"}', 300),
            ('total_bytes_total{engine="0",transfer_type="GPU_to_CPU"}', 700),
        ],
        [
            ('load_bytes_total{engine="0"}', 300),
            ('store_bytes_total{engine="0"}', 700),
        ],
    ],
    ids=["to 0.23", "from 0.24"],
)
def test_offloaded_bytes_have_one_name_in_every_version_and_are_counted_once(rows):
    extra = "".join(f"vllm:kv_offload_{series} {value}\n" for series, value in rows).encode()
    body = page("vllm-0.32.0-real-cpu-after")
    assert interpret(body + extra).details[Detail.OFFLOAD_BYTES]["0"] == OFFLOADED


def test_transfers_of_the_kv_cache_that_failed_are_kept_apart_by_what_went_wrong():
    names = {"num_failed_transfers": 3, "num_failed_notifications": 2, "num_kv_expired_reqs": 1}
    extra = "".join(f'vllm:nixl_{name}_total{{engine="0"}} {count}\n' for name, count in names.items())
    reading = interpret(page("vllm-0.32.0-real-cpu-after") + extra.encode())
    assert reading.details[Detail.TRANSFER_FAILURES]["0"] == {"failed": 3.0, "unconfirmed": 2.0, "expired": 1.0}


def test_sglangs_queues_and_slots_are_of_the_leader_of_each_rank_alone():
    labels = 'model_name="m",pp_rank="0",tp_rank="{}"'
    extra = "".join(
        f"sglang:{name}{{{labels.format(rank)}}} {value}\n"
        for rank in (0, 1)
        for name, value in (
            ("num_running_reqs", 1),
            ("num_decode_transfer_queue_reqs", 4),
            ("lora_pool_slots_used", 2),
            ("lora_pool_slots_total", 8),
            ("hicache_host_used_tokens", 50),
        )
    )
    reading = interpret(extra.encode())
    assert reading.details[Detail.SCHEDULER_QUEUES] == {"": {"decode_transfer": 4.0}}
    assert reading.details[Detail.LORA_SLOTS] == {"": {"used": 2.0, "total": 8.0}}
    assert reading.ranks[""][Quantity.HOST_CACHE_USED] == 50.0


def test_acceptance_and_length_are_of_the_window_and_absent_without_drafts():
    def body(drafts: int, drafted: int, accepted: int) -> bytes:
        counts = {"drafts": drafts, "draft_tokens": drafted, "accepted_tokens": accepted}
        rows = "".join(f'vllm:spec_decode_num_{name}_total{{engine="0"}} {count}\n' for name, count in counts.items())
        return b'vllm:num_requests_running{engine="0"} 1\n' + rows.encode()

    clock = Clock()
    server = make_poller([body(100, 300, 290), body(110, 330, 305), body(110, 330, 305)], clock)
    polled(server, clock)
    figures = polled(server, clock).windows["1m"]
    assert figures.spec_acceptance_ratio == pytest.approx(15 / 30)
    assert figures.spec_accepted_length == pytest.approx(15 / 10)
    assert figures.external_hit_ratio is None


def test_the_balance_of_experts_is_that_of_the_passes_in_the_window():
    clock = Clock()
    pages = [page("sglang-depth-handmade-t1"), page("sglang-depth-handmade-t2")]
    state = polled(make_poller(pages, clock, interval=30.0), clock, 2, step=30.0)
    # 60 added in 90 passes: (120 + 75 - 90 - 45) / (150 + 90 - 100 - 50)
    assert state.windows["1m"].expert_balance == pytest.approx(60 / 90)


def test_llama_cpp_tells_what_came_from_a_slots_cache_and_what_it_drafted():
    numbers = interpret(page("llamacpp-0.5.0-real-cpu-after")).ranks[""]
    assert numbers[Quantity.PROMPT_TOKENS] == numbers[Quantity.PREFIX_CACHE_QUERIES] == 4914 + 45240
    assert numbers[Quantity.PREFIX_CACHE_HITS] == 45240
    old = interpret(page("llamacpp-documented")).ranks[""]
    assert Quantity.PREFIX_CACHE_QUERIES not in old, "older versions tell nothing of the cache"
    drafting = interpret(page("llamacpp-0.5.0-ngram-real-cpu-load"))
    drafts, accepted = (drafting.ranks[""][name] for name in (Quantity.SPEC_DRAFTS, Quantity.SPEC_ACCEPTED_TOKENS))
    assert 0 < drafts < accepted
    assert sum(drafting.details[Detail.SPEC_POSITIONS][""].values()) == accepted


def test_vllms_newest_combination_of_adapters_counts_and_more_than_slots_are_requested():
    reading = interpret(page("vllm-depth-handmade-t1"))
    assert reading.details[Detail.LORA_SLOTS] == {"": {"used": 4.0, "total": 4.0, "requested": 5.0}}
    assert set(reading.ranks) == {"0"}, "a series without a rank makes no rank"


@pytest.mark.parametrize("newest", ["idle", "busy"])
def test_which_combination_of_adapters_is_the_newest_is_seen_on_every_page(newest):
    series = {"idle": ("", ""), "busy": ("a", "a,b")}
    times = {name: 2.0 if name == newest else 1.0 for name in series}
    rows = "".join(
        f'vllm:lora_requests_info{{max_lora="8",running_lora_adapters="{running}",waiting_lora_adapters="{waiting}"}} '
        f"{times[name]}\n"
        for name, (running, waiting) in series.items()
    )
    reading = interpret(b'vllm:num_requests_running{engine="0"} 1\n' + rows.encode())
    assert reading.details[Detail.LORA_SLOTS][""]["requested"] == {"idle": 0.0, "busy": 2.0}[newest]


def test_transfers_of_kv_caches_have_one_name_and_base_units_in_every_engine():
    of_vllm = interpret(page("vllm-depth-handmade-t1")).ranks["0"]
    of_sglang = interpret(page("sglang-depth-handmade-t1"))
    names = (Quantity.KV_TRANSFERS, Quantity.KV_TRANSFER_SECONDS, Quantity.KV_TRANSFER_BYTES)
    assert [of_vllm[name] for name in names] == [400.0, 12.0, 8e8]
    assert [of_sglang.ranks[""][name] for name in names] == [500.0, 25.0, 40000 * 2**20]
    assert of_sglang.details[Detail.TRANSFER_FAILURES] == {"": {"failed": 3.0, "unconnected": 1.0}}


def test_the_role_of_a_disaggregated_server_is_known_where_its_page_tells():
    assert interpret(page("sglang-depth-handmade-t1")).role == "prefill"
    assert interpret(page("sglang-0.5.23-real-cpu-load")).role == "", "one that does both has none"
    assert interpret(page("vllm-depth-handmade-t1")).role == ""


def test_each_gpu_moves_its_part_of_the_cache_and_each_tier_has_its_hits():
    reading = interpret(page("sglang-depth-handmade-t1"))
    assert reading.details[Detail.OFFLOAD_BYTES] == {"0": {"GPU_to_CPU": 1e9, "CPU_to_GPU": 4e8}}
    assert reading.details[Detail.OFFLOAD_SECONDS] == {"0": {"GPU_to_CPU": 4.0, "CPU_to_GPU": 1.0}}
    assert reading.details[Detail.CACHED_SOURCES][""] == {"device": 3000.0, "host": 900.0, "storage": 100.0}
    assert sum(reading.details[Detail.CACHED_SOURCES][""].values()) == reading.ranks[""][Quantity.PREFIX_CACHE_HITS]
    assert reading.details[Detail.SCHEDULER_STAGES][""]["run_batch"] == 40.0
    assert set(reading.ranks) == {""}

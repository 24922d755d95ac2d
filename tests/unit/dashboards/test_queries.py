"""The dashboards' queries and links against the catalogue: nothing is asked that nobody exposes, nothing exposed is left out."""

from __future__ import annotations

import json
import re

import promql_parser
import pytest

from alerts.registry import groups
from alerts.tuning import Tuning
from dashboards.trace_links import JAEGER_URL
from exporter.catalog import CATALOG
from exporter.catalog.spec import MetricKind, SeriesSet
from tests.support.dashboard_queries import UIDS, dashboard, filled, marks, panels, queries
from tests.unit.dashboards.test_lint import selectors

FOREIGN = {  # of Prometheus itself, and of every process
    "up", "scrape_duration_seconds", "scrape_samples_scraped", "process_cpu_seconds_total", "process_open_fds",
    "process_resident_memory_bytes", "process_start_time_seconds",
}  # fmt: skip
# Rows that no dashboard asks for, and why nobody misses them there.
ON_NO_DASHBOARD = {
    "shardwatch_accept_failures_total": "the log line accept_paused says it with what to raise, once a minute",
    "gpu_graphics_active_ratio": "utilisation and SM work say it, and are in the common set",
    "gpu_process_shared_memory_size_bytes": "set once for a container; whoever sees NCCL fail at its start asks for it",
    "gpu_process_shared_memory_used_bytes": "grows with the number of ranks once, at the start of an engine",
    "gpu_mps_active": "a setting of the node, compared when nodes of one service differ",
    "shardwatch_pushed_info": "stands in pushes alone, for an alert",
    "gpu_mode_info": "settings of the node, which shardwatch check compares between nodes",
    "gpu_fabric_manager_running": "fabric problems of the GPUs, which are shown, are what follows from it",
    "gpu_bar1_memory_total_bytes": "fixed from boot on; whoever sets up peer-to-peer asks once",
    "gpu_bar1_memory_used_bytes": "of use to whoever maps device memory, not to whoever serves models",
    "gpu_bar1_memory_free_bytes": "the size less what is used",
    "gpu_traffic_bytes_per_second": "the same bytes as the counters of the node's traffic panel",
    "gpu_jpeg_utilization_ratio": "of use to whoever decodes pictures on the GPU; no engine of this table does",
    "gpu_ofa_utilization_ratio": "of use to whoever works on video; language models never use it",
    "gpu_encoder_sessions": "of use to whoever shares a GPU with video; language models never encode",
    "gpu_clock_application_hertz": "a setting of an administrator; clocks and why they are reduced are shown",
    "gpu_ecc_enabled": "the table of missing signals has GPUs without ECC, with the reason disabled",
    "gpu_ecc_enabled_pending": "of use between a change of the mode and the reset of the GPU only",
    "gpu_sram_ecc_errors_total": "whether they are too many is in the table of GPU problems",
    "gpu_row_remap_banks": "asked once a GPU is about to be replaced",
    "gpu_c2c_enabled": "fixed from boot on; the count of active links says more",
    "llm_scrape_duration_seconds": "shardwatch_source_poll_duration_seconds has it beside all other sources",
    "llm_requests_swapped": "only engines of 2024 and before swap; preemptions stand for it",
    "llm_request_rate": "dashboards take the rate of llm_requests_total over the chosen time",
    "llm_requests_by_reason_total": "the engine's own words, of use beside its documentation; dashboards show outcomes",
    "llm_rejected_request_rate": "dashboards take the rate of llm_requests_total over the chosen time",
    "llm_generation_token_rate": "dashboards take the rate of llm_generation_tokens_total over the chosen time",
    "llm_aborted_requests_total": "llm_requests_total has them as an outcome",
    "llm_spec_decode_draft_tokens_total": "of engines that speculate, and in the full set alone; docs/metrics.md has the queries",
    "llm_spec_decode_accepted_tokens_total": "of engines that speculate, and in the full set alone; docs/metrics.md has the queries",
    "llm_external_cache_queries_total": "of engines with tiers of the KV cache, and in the full set alone",
    "llm_external_cache_hits_total": "of engines with tiers of the KV cache, and in the full set alone",
    "llm_kv_offload_duration_seconds_total": "of engines with tiers of the KV cache, and in the full set alone",
    "llm_engine_sleep_state": "of use beside the engine's documentation; the full set alone has it",
    "llm_cost_per_million_prompt_tokens": "the same price over the input; boards show it over the answers",
    "llm_cost_per_million_processed_tokens": "the same price over both; boards show it over the answers",
    "llm_kv_cache_used_tokens": "the capacity less what is free, and both are shown",
}


def exposed():
    """Return every sample name of the catalogue with its labels, and what Prometheus itself adds."""
    labels_by_name = {name: {"job", "instance"} for name in FOREIGN}
    labels_by_name["ALERTS"] = {"alertname", "alertstate", "severity", "component", "job", "instance"}
    for group in groups(Tuning()):
        labels_by_name |= {item.name: set(item.known.labels) for item in group.recordings()}
    for metric in CATALOG:
        labels = {"job", "instance", *metric.all_labels}
        if metric.kind is MetricKind.HISTOGRAM:
            labels_by_name |= {
                f"{metric.name}_bucket": labels | {"le"},
                f"{metric.name}_sum": labels,
                f"{metric.name}_count": labels,
            }
        else:
            labels_by_name[metric.name] = labels
    return labels_by_name


def everything(uid):
    """Return each query of a dashboard, those of its marks included, with its selectors."""
    for expr in [*(query.expr for query in queries(uid)), *marks(uid).values()]:
        promql_parser.parse(filled(expr))
        yield expr, [selector for selector, _ in selectors(expr)]


@pytest.mark.parametrize("uid", UIDS)
def test_every_query_requests_what_is_exposed(uid):
    known = exposed()
    for expr, labels_by_name in everything(uid):
        for selector in labels_by_name:
            assert selector.name in known, f"{expr}: {selector.name}"
            asked = {matcher.name for matcher in selector.matchers.matchers}
            assert asked <= known[selector.name], f"{expr}: {asked - known[selector.name]}"


def test_every_row_of_the_catalogue_is_on_a_dashboard_or_says_why_not():
    asked = {selector.name for uid in UIDS for _, selectors in everything(uid) for selector in selectors}
    shown = {re.sub(r"_(bucket|sum|count)$", "", name) for name in asked} | asked
    hidden = {metric.name: metric for metric in CATALOG if metric.name not in shown}
    new = hidden.keys() - ON_NO_DASHBOARD.keys()
    assert not new, f"draw {', '.join(sorted(new))} on a dashboard, or give the reason in ON_NO_DASHBOARD"
    assert set(hidden) == set(ON_NO_DASHBOARD), "these are on a dashboard and need no reason any more"
    common = {name for name, metric in hidden.items() if metric.series is SeriesSet.COMMON}
    assert common == {"shardwatch_pushed_info"}, "what every endpoint has, everybody must see; this one none has"
    assert all(len(why) > 20 for why in ON_NO_DASHBOARD.values())


@pytest.mark.parametrize("uid", UIDS)
def test_the_links_lead_to_dashboards_and_carry_every_variable(uid):
    link_count = 0
    for panel in panels(dashboard(uid)):
        config = panel.get("fieldConfig", {"defaults": {}, "overrides": []})
        given = list(config["defaults"].get("links", ()))
        for override in config["overrides"]:
            given += [link for prop in override["properties"] if prop["id"] == "links" for link in prop["value"]]
        for link in given:
            link_count += 1
            path, _, query = link["url"].partition("?")
            if path == f"{JAEGER_URL}/search":
                continue  # of another program: see test_trace_links.py
            assert path.removeprefix("/d/") in UIDS
            assert query.startswith("${__url_time_range}&${datasource:queryparam}")
            for name in ("job", "instance", "model", "replica", "gpu"):
                assert f"${{{name}:queryparam}}" in query or f"var-{name}=${{__" in query, link["url"]
    assert link_count, f"{uid} leads nowhere: give a panel or table drill_down, such as (TO_NODE,) of status.py"


def test_the_way_leads_from_the_fleet_over_the_node_to_the_gpu():
    nodes = next(panel for panel in panels(dashboard("shardwatch-fleet")) if panel["title"] == "Nodes by severity")
    gpus = next(panel for panel in panels(dashboard("shardwatch-node")) if panel["title"] == "GPUs side by side")
    owners = next(panel for panel in panels(dashboard("shardwatch-node")) if panel["title"] == "GPU assignment")
    assert "/d/shardwatch-node?" in json.dumps(nodes)
    assert 'var-gpu=${__data.fields[\\"GPU\\"]:percentencode}' in json.dumps(gpus).replace('\\\\\\"', '\\"')
    assert "/d/shardwatch-replica?" in json.dumps(owners)

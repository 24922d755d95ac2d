"""Many nodes: their simulation, the tiers' configuration, and what bounds the series of one node and of the fleet."""

from __future__ import annotations

import concurrent.futures
import contextlib
import gzip
import http.client
import http.server
import json
import os
import pathlib
import re
import subprocess
import threading
import time

import pytest
import yaml

from compose.fleet import measure, targets, usage
from compose.fleet.nodes import Nodes, Originals
from compose.fleet.template import MOST_NODES, template
from compose.fleet.usage import get
from compose.native import servers
from exporter.catalog import CATALOG
from exporter.catalog.spec import SeriesSet
from exporter.render.exposition import MAX_SERIES, ExpositionRenderer
from tests.support import builders
from tests.support.tools import tool

ROOT = pathlib.Path(__file__).parents[2]
FLEET = ROOT / "compose" / "fleet"
RULES = ROOT / "alerts" / "generated" / "en" / "rules.yaml"
GOLDEN = pathlib.Path(__file__).parents[1] / "golden"
CARDS = (GOLDEN / "cards-healthy.prom").read_bytes()
ENGINE = (GOLDEN / "vllm-0.32.0-real-cpu.prom").read_text()
REPLICA = (
    b'gpu_replica_info{gpu="0",uuid="GPU-2d270b7c-b5f4",replica="chat",rank=""} 1.0\nllm_up{replica="chat"} 1.0\n'
)


def series(page):
    return [line.rsplit(b" ", 1)[0] for line in page.splitlines() if line and not line.startswith(b"#")]


def recorded():
    groups = yaml.safe_load(RULES.read_text())["groups"]
    return {rule["record"] for group in groups for rule in group["rules"] if "record" in rule}


# ---------------------------------------------------------------------- the simulation


def test_two_nodes_share_no_series_of_a_gpu_or_a_replica():
    marked = template(CARDS + REPLICA)
    pages = [set(series(marked.page(node))) for node in (0, 1, 2, 999, MOST_NODES - 1)]
    assert [len(page) for page in pages] == [len(series(CARDS + REPLICA))] * 5
    shared = {
        series_line
        for series_line in set.intersection(*pages)
        if b"uuid=" in series_line or b"replica=" in series_line
    }
    assert shared == set()


def test_a_node_shows_the_figures_of_its_daemon():
    page = template(CARDS).page(7)
    assert [line.rsplit(b" ")[-1] for line in page.splitlines()] == [
        line.rsplit(b" ")[-1] for line in CARDS.splitlines()
    ]
    assert b"\x00" not in page


def test_a_replica_has_one_name_wherever_a_node_shows_it():
    page = b'a{replica="chat"} 1\nb{group="chat"} 1\nc{source="engine:chat"} 1\nd{model="chat-model"} 1\n'
    shown = template(page).page(5)
    assert (
        shown == b'a{replica="chat-5"} 1\nb{group="chat-5"} 1\nc{source="engine:chat-5"} 1\nd{model="chat-model"} 1\n'
    )


@pytest.mark.parametrize("node", [-1, MOST_NODES])
def test_a_node_that_cannot_be_distinguished_is_refused(node):
    with pytest.raises(ValueError, match=r"is not in 0 to 999999"):
        template(CARDS).page(node)


@pytest.fixture
def daemon():
    """Stand in for a daemon: answer with a page that the test may change."""
    config = {"page": CARDS + REPLICA}

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200 if config["page"] else 500)
            self.end_headers()
            self.wfile.write(config["page"])

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        config["url"] = f"http://127.0.0.1:{server.server_address[1]}/metrics"
        yield config
        server.shutdown()
        thread.join()


def scraped(port, path, accept="gzip"):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request("GET", path, headers={"Accept-Encoding": accept})
        answer = connection.getresponse()
        body = answer.read()
    finally:
        connection.close()
    packed = answer.headers.get("Content-Encoding") == "gzip"
    return answer.status, gzip.decompress(body) if packed else body


def test_a_thousand_nodes_of_eight_gpus_answer_from_one_process(daemon):
    with Nodes(Originals([daemon["url"]]), 1000) as nodes, concurrent.futures.ThreadPoolExecutor(8) as scrapers:
        paths = [f"/node/{n}/metrics" for n in range(1000)]
        answers = list(scrapers.map(lambda path: scraped(nodes.port, path), paths))
    assert {status for status, _ in answers} == {200}
    cards = {card for _, page in answers for card in re.findall(rb'gpu_up\{gpu="\d",uuid="([^"]+)"', page)}
    assert len(cards) == 8000


def test_what_is_no_node_is_not_found(daemon):
    with Nodes(Originals([daemon["url"]]), 3) as nodes:
        paths = ("/node/2/metrics", "/node/3/metrics", "/node/-1/metrics", "/metrics", "/node/x/metrics")
        assert [scraped(nodes.port, path)[0] for path in paths] == [200, 404, 404, 404, 404]
        assert scraped(nodes.port, "/node/0/metrics", "identity")[1].startswith(b"# HELP")


def test_a_node_whose_daemon_is_gone_fails_alone(daemon):
    originals = Originals([daemon["url"], "http://127.0.0.1:1/metrics"])
    with Nodes(originals, 4) as nodes:
        assert [scraped(nodes.port, f"/node/{n}/metrics")[0] for n in range(4)] == [200, 503, 200, 503]
        daemon["page"] = b""
        originals.refresh()
        assert scraped(nodes.port, "/node/0/metrics")[0] == 503


def test_counters_move_when_those_of_the_daemon_do(daemon):
    originals = Originals([daemon["url"]])
    with Nodes(originals, 2) as nodes:
        daemon["page"] = b'x_total{replica="chat"} 5\n'
        originals.refresh()
        assert scraped(nodes.port, "/node/1/metrics") == (200, b'x_total{replica="chat-1"} 5\n')


def test_every_node_is_a_target_of_its_own():
    config = targets.scrape("127.0.0.1:1", 30, interval="15s")["static_configs"]
    labels = [labels_of_target["labels"] for labels_of_target in config]
    assert (
        len({labels_of_target["instance"] for labels_of_target in labels})
        == len({labels_of_target["__metrics_path__"] for labels_of_target in labels})
        == 30
    )


# ---------------------------------------------------------------------- the tiers


@pytest.mark.parametrize("name", ["regional.yaml", "regional-remote-write.yaml", "global.yaml"])
def test_prometheus_accepts_the_tiers_configuration(name, promtool, tmp_path):
    text = (FLEET / name).read_text().replace("/etc/prometheus/rules/rules.yaml", str(RULES))
    (tmp_path / name).write_text(text.replace("[global-rules.yaml]", f"[{FLEET / 'global-rules.yaml'}]"))
    result = subprocess.run(
        [promtool, "check", "config", tmp_path / name], capture_output=True, text=True, timeout=60
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert "rules found" in result.stdout


def test_a_page_that_reached_the_hard_cap_is_still_scraped():
    assert targets.LIMITS["sample_limit"] >= MAX_SERIES + 100, "process_* and the daemon's own stand beside the cap"


def test_every_configuration_has_the_limits_that_are_tried_on_a_real_prometheus():
    folder = ROOT / "compose"
    for name in ("fleet/regional", "fleet/regional-remote-write", "prometheus/fleet", "prometheus/prometheus"):
        job, *_ = yaml.safe_load((folder / f"{name}.yaml").read_text())["scrape_configs"]
        assert job["job_name"] == targets.JOB
        assert {key: value for key, value in job.items() if "limit" in key} == targets.LIMITS, name
    for name in ("deployment.md", "zh/deployment.md"):
        assert yaml.safe_dump([{"job_name": targets.JOB, **targets.LIMITS}]) in [
            yaml.safe_dump(block["scrape_configs"])
            for fence in re.findall(r"```yaml\n(.*?)```", (ROOT / "docs" / name).read_text(), re.DOTALL)
            if "scrape_configs" in (block := yaml.safe_load(fence))
        ], name
    monitor = folder / "kubernetes/overlays/prometheus-operator/service-monitor.yaml"
    in_camel_case = {
        re.sub("_(.)", lambda match: match[1].upper(), key): value for key, value in targets.LIMITS.items()
    }
    del in_camel_case["bodySizeLimit"]  # older operators refuse it
    spec = yaml.safe_load(monitor.read_text())["spec"]
    assert {key: value for key, value in spec.items() if "Limit" in key} == in_camel_case


def test_the_limits_of_mimir_have_room_for_the_rules_and_for_a_thousand_nodes():
    (limits,) = yaml.safe_load((FLEET / "mimir-overrides.yaml").read_text())["overrides"].values()
    groups = {group["name"]: len(group["rules"]) for group in yaml.safe_load(RULES.read_text())["groups"]}
    assert max(groups.values()) <= limits["ruler_max_rules_per_rule_group"] and len(groups) <= 70
    said = (FLEET.parent / "FLEET.md").read_text()
    refused = sorted(f"{name.removeprefix('shardwatch-')} {size}" for name, size in groups.items() if size > 20)
    assert f"these groups are refused: {', '.join(refused)} |" in said
    assert f"the default: there are {len(groups)} |" in said
    assert limits["max_global_series_per_user"] >= 2 * 1_000 * 1_400
    assert limits["ingestion_rate"] >= 2 * 1_000 * 1_400 / 15
    assert max(len(metric.all_labels) for metric in CATALOG) == 13, "FLEET.md names the number"
    region = yaml.safe_load((FLEET / "regional.yaml").read_text())["global"]["external_labels"]
    assert {limits["ha_cluster_label"], limits["ha_replica_label"]} == set(region)


def test_the_global_rules_read_only_what_regions_record_and_hand_up():
    match = yaml.safe_load((FLEET / "global.yaml").read_text())["scrape_configs"][0]["params"]["match[]"][0]
    wanted = re.compile(re.search(r'__name__=~"(.+)"', match)[1])
    handed_up = {name for name in recorded() if wanted.fullmatch(name)}
    rules = yaml.safe_load((FLEET / "global-rules.yaml").read_text())["groups"][0]["rules"]
    own = {rule["record"] for rule in rules}
    read = {name for rule in rules for name in re.findall(r"\b[a-z_]+:\w+:\w+", rule["expr"])}
    assert read - own <= handed_up
    assert not [name for name in handed_up if "replica" in name], "one series a replica is too much for the top"
    assert len(handed_up) > 20


def test_what_is_written_to_the_store_is_recorded_and_not_by_replica():
    config = yaml.safe_load((FLEET / "regional-remote-write.yaml").read_text())
    keep, drop, _ = config["remote_write"][0]["write_relabel_configs"]
    kept = {
        name for name in {*recorded(), "up", "ALERTS", "gpu_power_watts"}
        if re.fullmatch(keep["regex"], name) and not re.fullmatch(drop["regex"], name)
    }  # fmt: skip
    assert {"up", "ALERTS", "job_instance:gpu_up:sum", "job_model:llm_up:sum"} <= kept
    assert "gpu_power_watts" not in kept
    assert not [name for name in kept if "replica" in name]


def run_promtool(promtool, tmp_path, rules, series, tests):
    case = {
        "rule_files": [str(rules)],
        "evaluation_interval": "30s",
        "tests": [{"interval": "30s", "input_series": series, "promql_expr_test": tests}],
    }
    (tmp_path / "case.yaml").write_text(json.dumps(case))
    command = [promtool, "test", "rules", str(tmp_path / "case.yaml")]
    return subprocess.run(command, capture_output=True, text=True, timeout=170)


def test_a_quantile_over_regions_comes_from_all_their_buckets(promtool, tmp_path):
    """One region answers 99 of 100 within 0.1 s, the other one of 100 requests: the mean would be far off."""
    name = "job_model_engine:llm_time_to_first_token_seconds_bucket:rate5m"
    buckets = [("a", "0.1", 99), ("a", "1", 99), ("a", "+Inf", 99), ("b", "0.1", 0), ("b", "1", 1), ("b", "+Inf", 1)]
    given = [
        {"series": f'{name}{{region="{region}",model="m",engine="vllm",le="{le}"}}', "values": f"{value}+0x10"}
        for region, le, value in buckets
    ]
    asked = 'model_engine:llm_time_to_first_token_seconds:quantile_rate5m{quantile="0.5"}'
    test = {
        "expr": f"round({asked}, 0.0001)",
        "eval_time": "4m",
        "exp_samples": [{"labels": '{engine="vllm",model="m",quantile="0.5"}', "value": 0.0505}],
    }
    result = run_promtool(promtool, tmp_path, FLEET / "global-rules.yaml", given, [test])
    assert result.returncode == 0, result.stdout + result.stderr


def quick(groups):
    """Return the rules as they are, but evaluated every second."""
    return {"groups": [{**group, "interval": "1s"} for group in groups]}


@pytest.fixture
def regional(daemon, tmp_path):
    """Run the node tier as its file says, over three nodes of eight cards, with a store to write to."""
    for name in ("prometheus", "promtool", "victoria-metrics"):
        tool(name)
    rules = [group for group in yaml.safe_load(RULES.read_text())["groups"] if group["name"] == "shardwatch-fleet"]
    (tmp_path / "rules.yaml").write_text(json.dumps(quick(rules)))
    config = yaml.safe_load((FLEET / "regional-remote-write.yaml").read_text())
    with contextlib.ExitStack() as running:
        nodes = running.enter_context(Nodes(Originals([daemon["url"]]), 3))
        store = running.enter_context(servers.victoria_metrics(tmp_path, arguments=["-search.latencyOffset=0s"]))
        scrape = targets.scrape(f"127.0.0.1:{nodes.port}", 3, interval="1s")
        del config["scrape_configs"][0]["file_sd_configs"], scrape["scrape_interval"]
        config["scrape_configs"][0].update(scrape)
        config["global"] |= {"scrape_interval": "1s", "scrape_timeout": "1s"}
        config["rule_files"], config["alerting"]["alertmanagers"] = ["rules.yaml"], []
        config["remote_write"][0]["url"] = f"{store.url}/api/v1/write"
        yield running.enter_context(servers.prometheus(tmp_path, config)), store


def until(claim, seconds=40):
    deadline = time.monotonic() + seconds
    while not claim() and time.monotonic() < deadline:
        time.sleep(0.3)
    assert claim()


@pytest.mark.slow
def test_the_global_tier_counts_the_gpus_of_every_region(regional, tmp_path):
    lower, store = regional
    top = tmp_path / "global"
    top.mkdir()
    rules = yaml.safe_load((FLEET / "global-rules.yaml").read_text())["groups"]
    (top / "global-rules.yaml").write_text(json.dumps(quick(rules)))
    config = yaml.safe_load((FLEET / "global.yaml").read_text())
    config["global"] |= {"scrape_interval": "1s", "scrape_timeout": "1s"}
    config["scrape_configs"][0]["static_configs"] = [{"targets": [lower.address]}]
    with servers.prometheus(top, config) as upper:
        until(lambda: measure.ask(upper, 'region:gpu_up:count{region="eu-1"}') == 24)
        assert measure.ask(upper, 'count({uuid!=""})') == 0, "no card's own series comes up"
        assert measure.ask(upper, 'count({twin!=""})') == 0
        assert measure.ask(upper, 'count(job_instance:gpu_power_watts:sum{job="shardwatch"})') == 3
    until(lambda: measure.ask(store, "sum(job_instance:gpu_up:sum)") == 24)
    names = set(json.loads(get(f"{store.url}/api/v1/label/__name__/values"))["data"])
    assert "up" in names
    assert not [name for name in names if name.startswith("gpu_")]


# ---------------------------------------------------------------------- what is bounded


@pytest.mark.parametrize("which", [SeriesSet.COMMON, SeriesSet.FULL])
def test_a_huge_node_stays_within_the_hard_cap_and_says_what_it_left_out(which):
    signals = dict.fromkeys(("utilization", "power", "temperature_gpu", "memory_used"), 0.5)
    node = builders.snapshot(
        cards=tuple(builders.card(index, **signals) for index in range(2000)),
        replicas=tuple(builders.replica(f"r{index}", model=f"m{index}") for index in range(2000)),
    )
    page = ExpositionRenderer(openmetrics=False, series=which).render(node)
    assert page.series <= MAX_SERIES
    assert page.dropped > 0
    assert len(series(page.body)) == page.series


def as_input(page, instance, job):
    """Yield each series of a page, moving, as it is after a scrape."""
    for series_line in dict.fromkeys(series(page)):
        text = series_line.decode()
        name, _, labels = text.partition("{")
        target = f'job="{job}",instance="{instance}"'
        yield {"series": f"{name}{{{target}{',' + labels if labels else '}'}", "values": "1+1x40"}


def twice_as_many_cards(page):
    more = re.sub(rb'gpu="(\d)"', rb'gpu="1\1"', re.sub(rb'uuid="GPU-', b'uuid="GPU-more-', page))
    return page + b"\n".join(line for line in more.splitlines() if b"uuid=" in line) + b"\n"


@pytest.mark.slow
def test_what_the_rules_record_does_not_grow_with_the_gpus_of_a_node(promtool, tmp_path):
    page = CARDS + "".join(line + "\n" for line in ENGINE.splitlines() if line.startswith("llm_")).encode()
    large = twice_as_many_cards(page)
    assert len(set(series(large))) > 1.5 * len(set(series(page)))
    given = [*as_input(page, "n1", "small"), *as_input(large, "n1", "large"),
             *as_input(page, "n1", "two"), *as_input(large, "n2", "two")]  # fmt: skip
    every = 'count({{__name__=~".+:.+:.+",job="{}"}})'
    by_model = 'count({{__name__=~"job_model.*:.+:.+",job="{}"}})'
    by_node = 'count({{__name__=~"job_instance:.+:.+",job="{}",instance="{}"}})'
    nodes = len({name for name in recorded() if name.startswith("job_instance:")})
    claims = [
        (f"{every.format('small')} == bool {every.format('large')}", 1),
        (f"{by_model.format('small')} == bool {by_model.format('two')}", 1),
        (f"{by_model.format('small')} > bool 10", 1),
        (by_node.format("large", "n1"), nodes - 1),  # no idle time in a golden page
        (by_node.format("two", "n2"), nodes - 1),
    ]
    tests = [
        {"expr": expr, "eval_time": "15m", "exp_samples": [{"labels": "{}", "value": value}]}
        for expr, value in claims
    ]
    result = run_promtool(promtool, tmp_path, RULES, given, tests)
    assert result.returncode == 0, (result.stdout + result.stderr)[-3000:]


def test_a_region_of_five_hundred_nodes_with_eight_replicas_stays_within_the_rules_limit():
    """A group whose rule gives more series than its limit fails whole; FLEET.md and regional.yaml promise 500."""
    assert "at most 500 nodes" in " ".join((FLEET / "regional.yaml").read_text().split("\n# "))
    limits = {group["name"]: group["limit"] for group in yaml.safe_load(RULES.read_text())["groups"]}
    assert min(limits.values()) >= 500 * 8


def test_no_recorded_name_has_a_gpus_label():
    """Levels are the labels of a recorded series: a level with the card in it would grow with the cards."""
    assert not [name for name in recorded() if re.match(r"\w*(gpu|uuid|card)\w*:", name)]


# ---------------------------------------------------------------------- the measurement


@pytest.mark.slow
def test_the_measurement_scrapes_every_node_and_stores_what_it_scraped(tmp_path):
    for name in ("prometheus", "promtool", "victoria-metrics"):
        tool(name)
    with measure.fleet(tmp_path, 6, interval="1s", rules=True, victoria=True) as config:
        cost = measure.measure(config, 6, interval="1s", rules=True, warm_up=6, seconds=6)
        stored = measure.stored(config)
    assert cost.up == 6
    assert 500 < cost.scraped_per_node < 1300
    assert cost.samples_per_second > 0.5 * 6 * cost.scraped_per_node
    assert cost.head_series > 6 * cost.scraped_per_node
    assert (cost.rule_failures, cost.rules) == (0, True)
    assert 0 < cost.prometheus_cpu < 2 and 0 < cost.victoria_cpu < 2
    assert cost.page_gzip_bytes < cost.page_bytes / 4
    assert stored["samples"] > 6 * cost.scraped_per_node
    assert stored["victoria_rows"] > 0


def test_memory_and_time_of_this_process_are_read_as_the_kernel_says():
    before = usage.cpu_seconds(os.getpid())
    sum(n * n for n in range(2_000_000))
    assert 0 < usage.cpu_seconds(os.getpid()) - before < 10
    assert 10 < usage.resident_mib(os.getpid()) < 2000


def test_a_servers_own_page_is_summed_over_labels():
    page = {'x_total{a="1"}': 2.0, 'x_total{a="2"}': 3.0, "x_totals": 7.0, "x_total": 1.0}
    assert usage.total(page, "x_total") == 6.0

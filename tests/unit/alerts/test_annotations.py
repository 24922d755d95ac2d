"""Summaries, descriptions and actions as Prometheus expands them, judged by promtool."""

from __future__ import annotations

import re

import promql_parser
import pytest
import yaml

from alerts import words
from alerts.registry import groups
from alerts.render import RULES, dashboard_url, files, runbook_url
from alerts.tuning import Tuning
from exporter.diagnosis.cause_names import CAUSE_NAMES
from exporter.model.finding import Severity
from exporter.model.straggler import Cause
from exporter.model.text import Language
from exporter.model.xid_catalog import CATALOGUE
from tests.component.alerts.test_alert_rules import needs_promtool, promtool
from tests.support import alert_cases
from tests.unit.alerts.test_rule_set import selectors

FOUND = groups(Tuning())
ALERTS = [alert for group in FOUND for alert in group.alerts()]
RECORDED = {recording.name: recording.known.labels for group in FOUND for recording in group.recordings()}


GPU = alert_cases.MACROS["GPU"]
REPLICA = alert_cases.MACROS["REPLICA"]
BACKEND = 'POOL,backend="b1"'
FROZEN = {"llm_frozen{REPLICA}": "1x20"}
QUEUE = {'llm_requests_running{REPLICA,rank=""}': "31x20", 'llm_requests_waiting{REPLICA,rank=""}': "18x20"}
GATEWAY = {
    f'gateway_backend_replica_info{{{BACKEND},replica="chat-a"}}': "1x20",
    f'gateway_request_share_ratio{{{BACKEND},window="1m"}}': "0.49x20",
}
XID_79 = {
    'gpu_xid_last_timestamp_seconds{GPU,xid="79",source="nvml+kernel_log"}': "0x20",
    'gpu_xid_action_info{GPU,xid="79",class="reset_node",action="reboot_node",meaning="GPU has fallen off the bus"}': "1x20",
}
OLDER_XID = {
    'gpu_xid_last_timestamp_seconds{GPU,xid="31",source="nvml"}': "-600x20",
    'gpu_xid_action_info{GPU,xid="31",class="application",action="restart_app",meaning="memory fault"}': "1x20",
}
OWNED = {'gpu_replica_info{OWNS,rank="0"}': "1x20"}
# alert, its labels beside severity and component, series, description in English, description in Chinese
DESCRIPTIONS = {
    "a lost GPU that nobody used": (
        "GpuLost", GPU, {"gpu_up{GPU}": "0x20"},
        "The GPU (GPU-3) does not answer.",
        "该卡（GPU-3）无应答。",
    ),
    "a lost GPU of a replica whose head is on another node": (
        "GpuLost", alert_cases.MACROS["GPU_N2"] | {"replica": "vllm://10.0.0.1:29501", "engine": "vllm", "replica_key": "vllm://10.0.0.1:29501"},
        {"gpu_up{GPU_N2}": "0x20", "gpu_multi_node_replica_info{HEAD_PART}": "1x20", "gpu_multi_node_replica_info{WORKER_PART}": "1x20",
         'gpu_replica_info{GPU_N2,replica="vllm://10.0.0.1:29501",engine="vllm",model="",rank=""}': "1x20"},
        "The GPU (GPU-b3) does not answer. It works for chat-a, whose head is n1:9853.",
        "该卡（GPU-b3）无应答。该卡为 chat-a 工作，其首节点是 n1:9853。",
    ),
    "a replica whose GPU on another node is lost": (
        "ReplicaPeerLost",
        {**alert_cases.TARGET, "replica": "chat-a", "replica_key": "vllm://10.0.0.1:29501"},
        {"gpu_up{GPU_N2}": "0x20", "gpu_multi_node_replica_info{HEAD_PART}": "1x20", "gpu_multi_node_replica_info{WORKER_PART}": "1x20"},
        ("1 of the replica's GPUs on other nodes have not answered for 1 minute. All nodes of the replica "
        "(vllm://10.0.0.1:29501) wait for them. GPU 3 on n2:9853 is lost."),
        ("该副本在其他节点上有 1 张卡已 1 分钟无应答，副本（vllm://10.0.0.1:29501）的所有节点都在等待。"
        "n2:9853 的 3 号卡已掉卡。"),
    ),
    "a lost GPU with cause, harm and traffic": (
        "GpuLost", GPU | alert_cases.MACROS["OWNS"], {"gpu_up{GPU}": "0x20", **OWNED, **XID_79, **OLDER_XID, **FROZEN, **QUEUE, **GATEWAY},
        ("The GPU (GPU-3) does not answer. XID 79: GPU has fallen off the bus. "
        "Recommended action: reboot the node. chat-a is frozen: it has requests and makes no progress. Requests running: 31. Requests waiting: 18. "
        "Gateway edge still sends it 49% of the requests of pool llama."),
        ("该卡（GPU-3）无应答。XID 79：GPU 已从总线掉落（fallen off the bus），驱动无法访问。建议操作：重启节点。"
        "chat-a 已冻结：有请求但没有任何进展。运行中的请求：31。排队的请求：18。网关 edge 仍把后端池 llama 49% 的请求发给它。"),
    ),
    "a frozen replica and the GPU that it lost": (
        "EngineFrozen", REPLICA, {**FROZEN, **QUEUE, **GATEWAY, **OWNED, "gpu_up{GPU}": "0x20", "gpu_up{CARD4}": "1x20"},
        ("Requests are running and no counter of the engine moves. It does not recover by itself. Its GPU 3 is lost. "
        "Requests running: 31. Requests waiting: 18. Gateway edge still sends it 49% of the requests of pool llama."),
        ("有请求在运行，但引擎的所有计数器都不再变化。它不会自行恢复。其 3 号卡已掉卡。运行中的请求：31。排队的请求：18。"
        "网关 edge 仍把后端池 llama 49% 的请求发给它。"),
    ),
    "an engine that refuses connections": (
        "EngineDown", REPLICA,
        {"llm_up{REPLICA}": "1x4 0x16", "llm_up{REPLICA_B}": "1x20", 'llm_requests_running{REPLICA,rank="0"}': "9x4 stale",
         'shardwatch_source_down_info{TARGET,source="engine:chat-a",reason="refused"}': "1x20",
         'shardwatch_source_down_info{TARGET,source="engine:chat-b",reason="timeout"}': "1x20"},
        ("The vllm server has not answered for 2m or longer. Other replicas of its model are up: it may be loading. It pages "
        "after 10m if requests ran on it; one that was drained is reported after 10m. Reason: refused."),
        "vllm 服务至少 2m 没有应答。同一模型的其他副本在线：可能正在加载。若此前有请求在运行，10m 后升级为紧急告警；已排空的副本 10m 后才报告。原因：refused。",
    ),
    "a straggler with its slowdown": (
        "GpuStraggler", {**GPU, "replica": "chat-a", "cause": "thermal"},
        {'gpu_straggler{GPU,replica="chat-a",cause="thermal"}': "1x20", 'gpu_straggler_slowdown_ratio{GPU,replica="chat-a"}': "1.31x20",
         'gpu_temperature_celsius{GPU,sensor="gpu"}': "91x20"},
        ("GPU 3 (GPU-3) is the straggler of its group: thermal throttling. It needs 1.31 times as long as its peers for the same work. "
        "Current temperature: 91 °C."),
        "3 号卡（GPU-3）拖慢了整组：过热降频。完成同样的工作，耗时是同组其他卡的 1.31 倍。当前温度 91 °C。",
    ),
    "a straggler with a lower power limit and fewer lanes, and what users feel": (
        "GpuStraggler", {**GPU, "replica": "chat-a", "cause": "power_cap"},
        {'gpu_straggler{GPU,replica="chat-a",cause="power_cap"}': "1x20", **OWNED, 'gpu_replica_info{OWNS4,rank="1"}': "1x20",
         "gpu_power_limit_watts{GPU}": "350x20", "gpu_power_limit_watts{CARD4}": "700x20",
         "gpu_pcie_link_width{GPU}": "4x20", "gpu_pcie_link_width_max{GPU}": "16x20",
         "llm_inter_token_latency_seconds_sum{REPLICA}": "0+4x20", "llm_inter_token_latency_seconds_count{REPLICA}": "0+100x20",
         "llm_inter_token_latency_seconds_sum{REPLICA_B}": "0+2x20", "llm_inter_token_latency_seconds_count{REPLICA_B}": "0+100x20",
         'llm_engine_info{REPLICA,version="1"}': "1x20", **QUEUE, **GATEWAY,
         'llm_verdict{REPLICA,state="drain",reason="xid_48"}': "1x20"},
        ("GPU 3 (GPU-3) is the straggler of its group: lower power limit. Power limit: 350 W. The highest of its group: 700 W. "
         "PCIe x4 of x16. Mean ITL: 40.0 ms. Another replica of the model: 20.0 ms. "
         "Requests running: 31. Requests waiting: 18. Gateway edge still sends it 49% of the requests of pool llama. "
         "Verdict: drain (xid_48)."),
        ("3 号卡（GPU-3）拖慢了整组：功率上限偏低。功率上限 350 W。组内最高 700 W。PCIe x4（最大 x16）。平均 ITL：40.0 ms。"
         "其他副本：20.0 ms。运行中的请求：31。排队的请求：18。"
         "网关 edge 仍把后端池 llama 49% 的请求发给它。判定：排空（drain），xid_48。"),
    ),
    "a lost GPU whose processes had an owner": (
        "GpuLost", GPU, {"gpu_up{GPU}": "1x4 0x16", 'gpu_owner_memory_bytes{GPU,owner="prod/chat-7d9/vllm"}': "7e10x4 stale",
                         'gpu_owner_memory_bytes{GPU,owner=""}': "9e10x4 stale"},
        "The GPU (GPU-3) does not answer. Owner: prod/chat-7d9/vllm.",
        "该卡（GPU-3）无应答。使用者：prod/chat-7d9/vllm。",
    ),
    "a straggler with another tenant": (
        "GpuStraggler", {**GPU, "replica": "chat-a", "cause": "other_tenant"},
        {'gpu_straggler{GPU,replica="chat-a",cause="other_tenant"}': "1x20", **OWNED, 'gpu_replica_info{OWNS4,rank="1"}': "1x20",
         'gpu_owner_memory_bytes{GPU,owner="prod/chat-7d9/vllm"}': "7e10x20",
         'gpu_owner_memory_bytes{CARD4,owner="prod/chat-7d9/vllm"}': "7e10x20",
         'gpu_owner_memory_bytes{GPU,owner="research/train-0/main"}': "1073741824x20"},
        ("GPU 3 (GPU-3) is the straggler of its group: shared with another tenant. Only on this GPU of the replica: "
         "research/train-0/main, which holds 1GiB. Owner: prod/chat-7d9/vllm."),
        "3 号卡（GPU-3）拖慢了整组：被其他租户占用。副本各卡中仅此卡上有 research/train-0/main，占用 1GiB。使用者：prod/chat-7d9/vllm。",
    ),
    "a frozen replica whose owner is known": (
        "EngineFrozen", REPLICA, {**FROZEN, **OWNED, 'gpu_owner_memory_bytes{GPU,owner="vllm@chat-a.service"}': "7e10x20"},
        "Requests are running and no counter of the engine moves. It does not recover by itself. Owner: vllm@chat-a.service.",
        "有请求在运行，但引擎的所有计数器都不再变化。它不会自行恢复。使用者：vllm@chat-a.service。",
    ),
    "ranks whose queues are uneven": (
        "RanksUneven", REPLICA,
        {'llm_rank_imbalance_max_to_mean_ratio{REPLICA,signal="requests_waiting"}': "7.9x20",
         'llm_rank_imbalance_max_to_mean_ratio{REPLICA,signal="requests_running"}': "1.02x20",
         'llm_requests_running{REPLICA,rank="0"}': "64x20", 'llm_requests_running{REPLICA,rank="1"}': "62x20",
         'llm_requests_waiting{REPLICA,rank="0"}': "90x20", 'llm_requests_waiting{REPLICA,rank="1"}': "1x20"},
        ("Its data-parallel ranks have unequal numbers of requests (threshold: the busiest has 1.35 times the mean). "
         "The longest queue is 7.9 times the mean queue. Rank 0 has the longest queue: 90 requests. Requests running: 126. Requests waiting: 91."),
        ("其各数据并行 rank 的请求数不等（阈值：最忙的是均值的 1.35 倍）。最长的排队是均值的 7.9 倍。rank 0 排队最长：90 个请求。运行中的请求：126。排队的请求：91。"),
    ),
    "a lost GPU whose XID recommends a reset": (
        "GpuLost", GPU, {"gpu_up{GPU}": "0x20",
        'gpu_xid_last_timestamp_seconds{GPU,xid="119",source="nvml"}': "0x20",
        'gpu_xid_action_info{GPU,xid="119",class="reset_card",action="reset_card",meaning="GSP RPC timeout"}': "1x20"},
        ("The GPU (GPU-3) does not answer. XID 119: GSP RPC timeout. Recommended action: reset the GPU. "
         "XID 119 recommends a reset of the GPU: try it before the reboot."),
        "该卡（GPU-3）无应答。XID 119：GPU 系统处理器（GSP）未按时响应驱动：驱动调用可能挂起。建议操作：复位该卡。XID 119 建议复位该卡：重启之前先尝试复位。",
    ),
    "an XID without advice": (
        "GpuXidResetNode", {**GPU, "xid": "79"}, {'gpu_xid_last_timestamp_seconds{GPU,xid="79",source="nvml+kernel_log"}': "0x20"},
        "XID 79 occurred 10m 0s ago (GPU-3).",
        "10m 0s 前出现 XID 79（GPU-3）。",
    ),
}  # fmt: skip


@needs_promtool
@pytest.mark.parametrize("case", DESCRIPTIONS)
@pytest.mark.parametrize("language", list(Language))
def test_a_description_shows_what_is_known_and_leaves_out_the_rest(case, language, tmp_path):
    name, labels, series, english, chinese = DESCRIPTIONS[case]
    alert = next(alert for alert in ALERTS if alert.name == name and alert.severity is not Severity.CRITICAL or
                 alert.name == name in {"GpuLost", "EngineFrozen", "ReplicaPeerLost"})  # fmt: skip
    (tmp_path / RULES).write_text(files(alert_cases.rules_of(name, FOUND), Tuning(), language)[RULES])
    written = {
        "summary": plain(alert.summary.in_(language), labels),
        "description": english if language is Language.ENGLISH else chinese,
        "action": plain(alert.action.in_(language), labels),
        "runbook_url": runbook_url(alert, Tuning(), language),
        "dashboard_url": plain(dashboard_url(alert, alert.panel, Tuning()).replace(" | urlquery", ""), labels).replace(":9853", "%3A9853"),
    }  # fmt: skip
    expected = {
        "exp_labels": {**labels, "severity": alert.severity.value, "component": alert.component.value},
        "exp_annotations": written,
    }
    case = {
        "interval": "1m",
        "input_series": [{"series": alert_cases.expanded(item), "values": values} for item, values in series.items()],
        "alert_rule_test": [{"eval_time": "10m", "alertname": name, "exp_alerts": [expected]}],
    }
    (tmp_path / "tests.yaml").write_text(
        yaml.safe_dump({"rule_files": [RULES], "evaluation_interval": "1m", "tests": [case]})
    )
    promtool("test", "rules", str(tmp_path / "tests.yaml"))


def plain(text, labels):
    """Return what Prometheus makes of a text: parts about labels, choices of words, labels."""

    def part(match):
        value = labels.get(match[1], "")
        shown, _, otherwise = re.sub(
            r"\{\{ if .*?\{\{ end \}\}", lambda choice: chosen_word(choice[0], value), match[2]
        ).partition("{{ else }}")
        return shown.replace("{{ . }}", value) if value else otherwise

    text = re.sub(
        r"\{\{ with \$labels\.([a-z_]+) \}\}((?:\{\{ if .*?\{\{ end \}\}|(?!\{\{ end).)*)\{\{ end \}\}", part, text
    )
    for label, value in labels.items():
        text = text.replace(f"{{{{ $labels.{label} }}}}", value)
    return text


def chosen_word(choice, value):
    match = re.search(rf'if eq \. "{value}" \}}\}}(.*?)\{{\{{ e', choice)
    return match[1] if match else value


def test_every_action_of_an_xid_and_every_cause_has_a_word():
    assert {xid.action for xid in CATALOGUE.values()} | {"look_up"} <= set(words.ACTIONS)
    assert set(Cause) == set(CAUSE_NAMES)
    assert {cause.value for cause in Cause} == set(words.CAUSE_ACTIONS)


@needs_promtool
def test_a_fast_burn_says_how_long_a_full_budget_lasts(tmp_path):
    burn = next(alert for alert in ALERTS if alert.name == "TtftSloBurn" and alert.labels["window"] == "1h")
    sentence = re.search(r"\{\{ with printf `2592000 / %f`.*", burn.description.en)[0]
    rule = {"alert": "Burn", "expr": "vector(20)", "annotations": {"text": sentence}}
    (tmp_path / RULES).write_text(yaml.safe_dump({"groups": [{"name": "g", "rules": [rule]}]}))
    expected = {"exp_annotations": {"text": " At this rate a full error budget lasts 1d 12h 0m 0s."}}
    case = {"interval": "1m", "alert_rule_test": [{"eval_time": "5m", "alertname": "Burn", "exp_alerts": [expected]}]}
    (tmp_path / "tests.yaml").write_text(yaml.safe_dump({"rule_files": [RULES], "tests": [case]}))
    promtool("test", "rules", str(tmp_path / "tests.yaml"))


def test_every_value_that_a_text_looks_up_is_exposed():
    asked = 0
    for alert in ALERTS:
        for query in re.findall(r"with printf `([^`]+)` \$labels", alert.description.en):
            for node in selectors(promql_parser.parse(query.replace("%q", '"x"'))):
                asked += 1
                labels = RECORDED.get(node.name) or alert_cases.declared(node.name)
                assert {matcher.name for matcher in node.matchers.matchers} <= labels
    assert asked > 20


def judged(folder, wanted, series, queries, minutes=3, language=Language.ENGLISH):
    """Evaluate the group of an alert over series, and ask promtool whether queries give what is said."""
    (folder / RULES).write_text(files([group for group in FOUND if wanted in group.name], Tuning(), language)[RULES])
    case = {
        "interval": "1m",
        "input_series": [{"series": name, "values": values} for name, values in series.items()],
        **queries(f"{minutes}m"),
    }
    (folder / "tests.yaml").write_text(
        yaml.safe_dump({"rule_files": [RULES], "evaluation_interval": "1m", "tests": [case]})
    )
    promtool("test", "rules", str(folder / "tests.yaml"))


def counted(*expected):
    return lambda at: {
        "promql_expr_test": [
            {"expr": f"count({query})", "eval_time": at, "exp_samples": [{"labels": "{}", "value": number}]}
            for query, number in expected
        ]
    }


@needs_promtool
def test_two_clusters_whose_nodes_have_the_same_names_are_not_mixed_up(tmp_path):
    series = {}
    for cluster, driver in (("east", "580.95.05"), ("west", "570.172.08")):
        node = f'job="shardwatch",instance="n1:9853",cluster="{cluster}"'
        series[f'llm_engine_info{{{node},replica="a",engine="vllm",model="llama",version="0.32.0"}}'] = "1x60"
        series[f'gpu_driver_info{{{node},driver_version="{driver}",nvml_version="13",cuda_version="13.0"}}'] = "1x60"
        replica = f'{node},replica="a",engine="vllm",model="llama"'
        series[f"llm_time_to_first_token_seconds_count{{{replica}}}"] = "0+60x60"
        series[f'llm_time_to_first_token_seconds_bucket{{{replica},le="2.5"}}'] = "0+60x60"
    judged(
        tmp_path, "fleet", series, counted(('ALERTS{alertname="DriverVersionsDiffer",alertstate="firing"}', 1)), 45
    )
    recording = 'job_model_class_objective:llm_slo_events:rate5m{objective="first_token"} == 2'
    judged(tmp_path, "slo", series, counted((recording, 1)), 45)


@needs_promtool
def test_alerts_keep_the_labels_that_the_operators_targets_carry(tmp_path):
    card = 'job="shardwatch",instance="n1:9853",team="search",gpu="3",uuid="GPU-3"'
    series = {
        f'gpu_xid_last_timestamp_seconds{{{card},xid="79",source="nvml+kernel_log"}}': "0x20",
        f'gpu_xid_last_timestamp_seconds{{{card},xid="999",source="nvml"}}': "0x20",
        f"gpu_up{{{card}}}": "0x20",
        f'gpu_replica_info{{{card},replica="a",engine="vllm",model="llama",rank="0"}}': "1x20",
    }
    for group, names in (("gpu-health", ("GpuXidResetNode", "GpuXidInspect")), ("gpu-lost", ("GpuLost",))):
        judged(
            tmp_path,
            group,
            series,
            counted(*((f'ALERTS{{alertname="{name}",team="search"}}', 1) for name in names)),
        )

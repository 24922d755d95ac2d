"""What is wrong, as one number per node, GPU and replica: the worst problem of each, with its cause and action in words.

The order is that of ``PROBLEMS``: what users notice, then causes.  A subject with several problems shows the first.
"""

from __future__ import annotations

from collections.abc import Iterator

from alerts.recordings import MODEL, RECENT_SECONDS
from dashboards.definitions import straggler_causes
from dashboards.panels import ValueMapping
from dashboards.panels.panel import Colour
from dashboards.thresholds import THRESHOLDS
from dashboards.variables import EXPORTER_WINDOW, NODE, by_recent_replica, selected, targets
from exporter.catalog import metrics as m
from exporter.catalog.spec import Unit
from exporter.diagnosis.cause_names import CAUSE_NAMES
from exporter.model.straggler import Cause
from exporter.model.text import Text
from exporter.model.xid_catalog import FATAL
from exporter.promql import (
    Expr,
    and_on,
    count_by,
    join,
    label_replace,
    max_by,
    over_time,
    regex,
    since,
    sum_by,
    unless,
)

SUBJECT = ("instance", "gpu", "replica")
OFF_THE_BUS = 79  # the XID of a GPU that has left the PCIe bus
_WORST = 100  # less the position in the list, so that a table sorted by it shows the worst first
_RED, _AMBER = Colour.CRITICAL, Colour.WARNING
_WORDS: tuple[tuple[Text, Text, Colour], ...] = (
    (Text("exporter down", "采集器失联"), Text("systemctl status shardwatch", "systemctl status shardwatch"), _RED),
    (
        Text("GPU lost: XID 79, fallen off the bus", "掉卡：XID 79，已从总线掉落"),
        Text("take the replica out, drain and reboot the node", "摘除副本，排空并重启节点"),
        _RED,
    ),
    (
        Text("GPU lost", "掉卡 / 无应答"),
        Text("take the replica out, drain, reset the GPU or reboot", "摘除副本，排空，复位该卡或重启节点"),
        _RED,
    ),
    (
        Text("frozen: no progress, no tokens", "冻结：没有进展，不产出 token"),
        Text("take it out of the gateway, restart it", "从网关摘除并重启"),
        _RED,
    ),
    (Text("engine down", "引擎停止"), Text("start it, read its log", "启动并查看日志"), _RED),
    (Text("requests fail", "请求失败"), Text("take it out of the gateway, read its log", "从网关摘除并查看日志"), _RED),
    (
        Text("GPU memory full", "显存已满"),
        Text("end other processes, or restart with less memory", "结束其他进程，或减少显存后重启"),
        _RED,
    ),
    (Text("XID that needs a reset", "XID 要求复位"), Text("drain, then reset the GPU", "排空后复位该卡"), _RED),
    (Text("memory row cannot be replaced", "显存行无法重映射"), Text("drain, replace the GPU", "排空后更换该卡"), _AMBER),
    (Text("network port down", "网卡端口断开"), Text("check cable, transceiver, switch port", "检查线缆、光模块与交换机端口"), _AMBER),
    (Text("NVLinks down", "NVLink 断开"), Text("drain, reset all GPUs of the board", "排空并复位整板的卡"), _AMBER),
    (
        Text("GPUs talk over PCIe and wait", "卡间经 PCIe 通信，互相等待"),
        Text("smaller groups inside one PCIe switch, or GPUs with NVLink", "改用同一 PCIe 交换机内的小组，或带 NVLink 的卡"),
        _AMBER,
    ),
    (
        Text("the scheduler prefers some ranks", "调度器偏向部分 rank"),
        Text("balance by tokens or KV cache, not by requests", "按 token 数或 KV 缓存而非请求数均衡"),
        _AMBER,
    ),
    (
        Text("nodes differ in driver or engine version", "节点驱动或引擎版本不一致"),
        Text("bring the nodes to one version", "统一各节点版本"),
        _AMBER,
    ),
)  # fmt: skip
_STRAGGLER_ACTIONS: dict[Cause, Text] = {
    Cause.POWER_BRAKE: Text("check the power supplies", "检查电源"),
    Cause.THERMAL: Text("move load off, check fan and airflow", "减少流量，检查风扇与风道"),
    Cause.POWER_CAP: Text("set the limit of its peers: nvidia-smi -pl", "设为与同组一致：nvidia-smi -pl"),
    Cause.CLOCK_LOCK: Text("unlock the clocks: nvidia-smi -rgc", "解除锁定：nvidia-smi -rgc"),
    Cause.OTHER_TENANT: Text("end or move the process that is not the replica's", "结束或迁走不属于该副本的进程"),
    Cause.PCIE: Text("move load off, reseat it, check the riser", "减少流量，重新插卡，检查转接卡"),
    Cause.NVLINK: Text("drain and reset all GPUs of the baseboard", "排空并复位整板的卡"),
    Cause.MEMORY_PRESSURE: Text("end other processes", "结束其他进程"),
    Cause.UNKNOWN: Text("compare it with its peers: nvidia-smi -q", "与同组比较：nvidia-smi -q"),
}


def _waits_for(cause: Cause) -> Text:
    name = CAUSE_NAMES[cause]
    return Text(f"the group waits for this GPU: {name.en}", f"同组在等待此卡：{name.zh}")


PROBLEMS = (
    *(ValueMapping(_WORST - place, text, colour) for place, (text, _, colour) in enumerate(_WORDS, 1)),
    *(ValueMapping(number, _waits_for(cause), _AMBER) for number, cause in enumerate(Cause, 1)),
)
ACTIONS = (
    *(ValueMapping(_WORST - place, text, Colour.PLAIN) for place, (_, text, _) in enumerate(_WORDS, 1)),
    *(ValueMapping(number, _STRAGGLER_ACTIONS[cause], Colour.PLAIN) for number, cause in enumerate(Cause, 1)),
)


def worst() -> Expr:
    """Return the number of the worst problem of each subject."""
    found: Expr | None = None
    for place, subject in _numbered():
        part = _row(subject)
        part = part * 0 + (_WORST - place)
        found = part if found is None else found | part
    assert found is not None  # there are problems
    return found | _row(straggler_causes.cause())


def _numbered() -> Iterator[tuple[int, Expr]]:
    down = 1 - targets() > 0
    lost = 1 - selected(m.GPU_UP) > 0
    off_bus = selected(m.GPU_XID_LAST_TIMESTAMP_SECONDS, xid=str(OFF_THE_BUS))
    full = selected(m.GPU_MEMORY_USED_BYTES) / selected(m.GPU_MEMORY_TOTAL_BYTES) > THRESHOLDS.gpu_memory_used.warning
    xids = selected(m.GPU_XID_LAST_TIMESTAMP_SECONDS, xid=regex("|".join(str(code) for code in sorted(FATAL))))
    limits = THRESHOLDS
    causes = (
        down,
        and_on(lost, since(off_bus) < RECENT_SECONDS, on=(*NODE, "uuid")),
        lost,
        selected(m.LLM_FROZEN).equals(1),
        selected(m.LLM_UP).equals(0),
        selected(m.LLM_ERROR_RATIO, window=EXPORTER_WINDOW) > limits.error_ratio.warning,
        full,
        unless(max_by(since(xids) < RECENT_SECONDS, *NODE, "gpu", "uuid"), lost, on=(*NODE, "uuid")),
        selected(m.GPU_ROW_REMAP_FAILED).equals(1),
        selected(m.NIC_PORT_DOWN).equals(1),
        selected(m.GPU_NVLINK_LINKS_DOWN) > 0,
        _over_pcie(),
        _uneven_ranks(),
        _differing_nodes(),
    )
    for place, found in enumerate(causes, 1):
        if "uuid" in found.labels and place in {2, 3, 7}:
            yield from ((place, part) for part in _with_replica(found))
        else:
            yield place, found


def _with_replica(gpus: Expr) -> tuple[Expr, Expr]:
    """Return the GPUs of replicas, and those of none."""
    owned = by_recent_replica(gpus)
    return max_by(owned, *NODE, "gpu", "uuid", "replica"), unless(gpus, owned, on=(*NODE, "uuid"))


def _over_pcie() -> Expr:
    spread = over_time("avg", selected(m.GPU_UTILIZATION_SPREAD_RATIO, scope="replica"), "3m")
    wide = label_replace(spread, "replica", "$1", "group", "(.+)") > THRESHOLDS.utilization_spread.warning
    return and_on(selected(m.LLM_CARDS_OVER_PCIE).equals(1), wide, on=(*NODE, "replica"))


def _uneven_ranks() -> Expr:
    load = sum_by(selected(m.LLM_REQUESTS_RUNNING), *NODE, "replica") >= THRESHOLDS.balance_requests.warning
    skew = over_time("avg", selected(m.LLM_RANK_IMBALANCE_MAX_TO_MEAN_RATIO, signal="requests_running"), "5m")
    return and_on(skew > THRESHOLDS.rank_imbalance.warning, load, on=(*NODE, "replica"))


def _differing_nodes() -> Expr:
    """Return the nodes of models whose nodes differ, the model in the column of replicas: none of them is wrong by itself."""
    versions = ("driver_version", "cuda_version")
    served = join(selected(m.LLM_ENGINE_INFO), selected(m.GPU_DRIVER_INFO), on=NODE, group_left=versions)
    differing = count_by(count_by(served, *MODEL, *versions), *MODEL) > 1
    nodes = and_on(max_by(served, *NODE, "model"), differing, on=MODEL)
    return label_replace(nodes, "replica", "$1", "model", "(.+)")


def _row(subject: Expr) -> Expr:
    """Return the subjects with the labels of a row, an empty one where they have none."""
    kept = [label for label in SUBJECT if label in subject.labels]
    found = max_by(subject, *kept).as_unit(Unit.NONE)
    for label in SUBJECT:
        if label not in kept:
            found = label_replace(found, label, "", kept[0], "(.*)")
    return found

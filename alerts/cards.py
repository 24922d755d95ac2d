"""Alerts about sick cards: lost, fatal XIDs by what they ask for, memory errors, links."""

from __future__ import annotations

from alerts.boards import CARD_ECC, CARD_LINKS, CARD_REMAP, CARD_XIDS, FLEET_CARDS
from alerts.figures import CARD
from alerts.rule import Alert, Component, Group, Severity
from alerts.text import Text
from alerts.tuning import Tuning
from exporter.catalog import metrics as m
from exporter.promql import Expr, increase, max_by, over_time, regex, select, since, without_value
from exporter.xid import CATALOGUE, Class

_RECENT = 3600  # seconds: an XID is news for an hour, also when the daemon or Prometheus started in between


def groups(tuning: Tuning) -> tuple[Group, ...]:
    """Give the group about the health of cards."""
    return (Group(name="shardwatch-cards", rules=(*_lost(), *_xids(), *_memory(tuning), *_links(tuning))),)


def _lost() -> tuple[Alert, ...]:
    return (
        Alert(
            name="GpuLost",
            severity=Severity.CRITICAL,
            symptom=True,
            component=Component.GPU,
            expr=select(m.GPU_UP).equals(0),
            lasting="1m",
            panel=FLEET_CARDS,
            summary=Text(
                "Card {{ $labels.gpu }} of {{ $labels.instance }} is lost",
                "{{ $labels.instance }} 的 {{ $labels.gpu }} 号卡丢失",
            ),
            description=Text(
                "Card {{ $labels.gpu }} ({{ $labels.uuid }}) has not answered for a minute: fallen off the bus, hung, "
                "or waiting for a reset. Every replica that uses it is about to freeze in its next collective.",
                "{{ $labels.gpu }} 号卡（{{ $labels.uuid }}）已有一分钟无应答：从总线掉落、挂死，或等待复位。"
                "使用它的所有副本都会在下一次集合通信中冻结。",
            ),
        ),
        Alert(
            name="GpuRecoveryNeeded",
            severity=Severity.WARNING,
            component=Component.GPU,
            expr=select(m.GPU_RECOVERY_ACTION, action=without_value("none")).equals(1),
            lasting="1m",
            panel=CARD_XIDS,
            summary=Text(
                "The driver asks for {{ $labels.action }} of card {{ $labels.gpu }} on {{ $labels.instance }}",
                "驱动要求对 {{ $labels.instance }} 的 {{ $labels.gpu }} 号卡执行 {{ $labels.action }}",
            ),
            description=Text(
                "Card {{ $labels.gpu }} ({{ $labels.uuid }}) works on borrowed time: drain its replicas, then do what "
                "the driver asks for ({{ $labels.action }}).",
                "{{ $labels.gpu }} 号卡（{{ $labels.uuid }}）随时可能失效：先迁走其上的副本，再执行驱动要求的操作"
                "（{{ $labels.action }}）。",
            ),
        ),
    )


def _seen(kind: Class) -> Expr:
    """Select the XIDs of a class that were seen within the hour.

    By their time, not by the counter's increase: the first event of a code creates its series at 1, and increase()
    never sees a first sample.
    """
    codes = "|".join(str(code) for code in sorted(CATALOGUE) if CATALOGUE[code].kind is kind)
    return since(select(m.GPU_XID_LAST_TIMESTAMP_SECONDS, xid=regex(codes))) < _RECENT


def _xids() -> tuple[Alert, ...]:
    def alert(name: str, kind: Class, severity: Severity, what: Text, cure: Text) -> Alert:
        return Alert(
            name=name,
            severity=severity,
            component=Component.GPU,
            expr=max_by(_seen(kind), *CARD, "xid"),
            lasting="1m",
            panel=CARD_XIDS,
            summary=Text(
                f"XID {{{{ $labels.xid }}}} on card {{{{ $labels.gpu }}}} of {{{{ $labels.instance }}}}: {what.en}",
                f"{{{{ $labels.instance }}}} 的 {{{{ $labels.gpu }}}} 号卡出现 XID {{{{ $labels.xid }}}}：{what.zh}",
            ),
            description=Text(
                "XID {{ $labels.xid }} was seen {{ $value | humanizeDuration }} ago on card {{ $labels.gpu }} "
                f"({{{{ $labels.uuid }}}}). {cure.en}",
                "{{ $value | humanizeDuration }} 前在 {{ $labels.gpu }} 号卡（{{ $labels.uuid }}）上出现 "
                f"XID {{{{ $labels.xid }}}}。{cure.zh}",
            ),
        )

    return (
        alert(
            "GpuXidResetNode",
            Class.RESET_NODE,
            Severity.WARNING,
            Text("the node must be restarted", "需要重启节点"),
            Text(
                "Drain the node and restart it; cold if it comes back.",
                "请迁走节点上的负载后重启；若再次出现则断电重启。",
            ),
        ),
        alert(
            "GpuXidResetCard",
            Class.RESET_CARD,
            Severity.WARNING,
            Text("the card must be reset", "需要复位显卡"),
            Text("Drain its replicas and reset the card.", "请迁走其上的副本后复位该卡。"),
        ),
        alert(
            "GpuXidInspect",
            Class.INSPECT,
            Severity.WARNING,
            Text("somebody must look", "需要人工检查"),
            Text(
                "What to do depends on what the kernel log says beside it; gpu_xid_action_info holds the catalogue's "
                "advice.",
                "处理方式取决于内核日志中的上下文；目录建议见 gpu_xid_action_info。",
            ),
        ),
        alert(
            "GpuXidApplication",
            Class.APPLICATION,
            Severity.INFO,
            Text("a process on it was ended", "其上的进程被终止"),
            Text(
                "The process that used the card is gone, the card is not: look at the engine's log and version first.",
                "丢失的是使用该卡的进程而不是显卡：请先查看引擎日志与版本。",
            ),
        ),
    )


def _memory(tuning: Tuning) -> tuple[Alert, ...]:
    limits = tuning.thresholds
    uncorrected = select(m.GPU_ECC_ERRORS_TOTAL, error="uncorrected", scope="volatile")
    # A level, not an increase: the counter is volatile, so anything above 0 happened since the last reset of the
    # card, and an increase would miss what happened before the first scrape.
    return (
        Alert(
            name="GpuEccUncorrectable",
            severity=Severity.WARNING,
            component=Component.GPU,
            expr=over_time("max", uncorrected, "2m") > 0,
            lasting="1m",
            panel=CARD_ECC,
            summary=Text(
                "Card {{ $labels.gpu }} of {{ $labels.instance }} has uncorrectable memory errors",
                "{{ $labels.instance }} 的 {{ $labels.gpu }} 号卡出现不可纠正的显存错误",
            ),
            description=Text(
                "{{ $value | humanize }} uncorrectable errors since the card was last reset ({{ $labels.uuid }}). "
                "Whatever stood in those cells is lost; the process that held them was ended.",
                "自该卡（{{ $labels.uuid }}）上次复位以来有 {{ $value | humanize }} 次不可纠正错误。"
                "相应单元中的数据已丢失，占用它们的进程已被终止。",
            ),
        ),
        Alert(
            name="GpuEccCorrectedOften",
            severity=Severity.INFO,
            component=Component.GPU,
            expr=increase(select(m.GPU_ECC_ERRORS_TOTAL, error="corrected", scope="volatile"), "1d")
            > limits.corrected_ecc.warning,
            lasting=limits.corrected_ecc.lasting,
            panel=CARD_ECC,
            summary=Text(
                "Card {{ $labels.gpu }} of {{ $labels.instance }} corrects unusually many memory errors",
                "{{ $labels.instance }} 的 {{ $labels.gpu }} 号卡纠正的显存错误异常多",
            ),
            description=Text(
                "{{ $value | humanize }} corrected errors in a day ({{ $labels.uuid }}). Nothing is lost yet; plan a "
                "field diagnostic.",
                "一天内纠正了 {{ $value | humanize }} 次错误（{{ $labels.uuid }}）。目前没有数据丢失，请安排诊断。",
            ),
        ),
        Alert(
            name="GpuRowRemapPending",
            severity=Severity.WARNING,
            component=Component.GPU,
            expr=select(m.GPU_ROW_REMAP_PENDING).equals(1),
            lasting="5m",
            panel=CARD_REMAP,
            summary=Text(
                "Card {{ $labels.gpu }} of {{ $labels.instance }} needs a reset to replace a memory row",
                "{{ $labels.instance }} 的 {{ $labels.gpu }} 号卡需要复位以替换显存行",
            ),
            description=Text(
                "A bad row of {{ $labels.uuid }} is replaced at the next reset of the card; until then it may fail "
                "again. Drain and reset when it suits.",
                "{{ $labels.uuid }} 的坏行要到下次复位才会被替换，在此之前可能再次出错。请择机迁走负载并复位。",
            ),
        ),
        Alert(
            name="GpuRowRemapFailed",
            severity=Severity.WARNING,
            component=Component.GPU,
            expr=select(m.GPU_ROW_REMAP_FAILED).equals(1),
            lasting="1m",
            panel=CARD_REMAP,
            summary=Text(
                "Card {{ $labels.gpu }} of {{ $labels.instance }} could not replace a memory row: it needs service",
                "{{ $labels.instance }} 的 {{ $labels.gpu }} 号卡无法替换显存行，需要送修",
            ),
            description=Text(
                "{{ $labels.uuid }} has run out of spare rows, or the replacement failed. Take it out of service and "
                "run the vendor's field diagnostic.",
                "{{ $labels.uuid }} 的备用行已用尽或替换失败。请将其下线并运行厂商诊断。",
            ),
        ),
    )


def _links(tuning: Tuning) -> tuple[Alert, ...]:
    limits = tuning.thresholds
    return (
        Alert(
            name="GpuNvlinkDown",
            severity=Severity.WARNING,
            component=Component.GPU,
            expr=select(m.GPU_NVLINK_LINKS_DOWN) > 0,
            lasting="2m",
            panel=CARD_LINKS,
            summary=Text(
                "Card {{ $labels.gpu }} of {{ $labels.instance }} has lost NVLinks",
                "{{ $labels.instance }} 的 {{ $labels.gpu }} 号卡有 NVLink 断开",
            ),
            description=Text(
                "{{ $value | humanize }} links are down that were up before, or that its neighbours have "
                "({{ $labels.uuid }}). Collectives of its replicas run over fewer links, over PCIe, or time out.",
                "有 {{ $value | humanize }} 条曾经在线或同型号邻卡具备的链路断开（{{ $labels.uuid }}）。"
                "相关副本的集合通信会使用更少的链路、改走 PCIe，或超时。",
            ),
        ),
        Alert(
            name="GpuNvlinkErrors",
            severity=Severity.WARNING,
            component=Component.GPU,
            expr=increase(select(m.GPU_NVLINK_ERRORS_TOTAL), "15m") > limits.nvlink_errors.warning,
            lasting=limits.nvlink_errors.lasting,
            keep="10m",
            full_series="GpuNvlinkDown and GpuXidInspect (74, 144 to 150) tell a link that fails, not one that errs.",
            panel=CARD_LINKS,
            summary=Text(
                "NVLink errors ({{ $labels.type }}) on card {{ $labels.gpu }} of {{ $labels.instance }}",
                "{{ $labels.instance }} 的 {{ $labels.gpu }} 号卡出现 NVLink 错误（{{ $labels.type }}）",
            ),
            description=Text(
                "{{ $value | humanize }} {{ $labels.type }} errors in 15 minutes ({{ $labels.uuid }}): a bad link, "
                "bridge or baseboard connector.",
                "15 分钟内 {{ $value | humanize }} 次 {{ $labels.type }} 错误（{{ $labels.uuid }}）："
                "链路、桥接器或底板接口不良。",
            ),
        ),
        Alert(
            name="GpuPcieReplays",
            severity=Severity.WARNING,
            component=Component.GPU,
            expr=increase(select(m.GPU_PCIE_REPLAYS_TOTAL), "1h") > limits.pcie_replays.warning,
            lasting=limits.pcie_replays.lasting,
            keep="10m",
            full_series="GpuPcieDowngraded tells a link that has become narrow or slow.",
            panel=CARD_LINKS,
            summary=Text(
                "Card {{ $labels.gpu }} of {{ $labels.instance }} repeats PCIe packets",
                "{{ $labels.instance }} 的 {{ $labels.gpu }} 号卡频繁重传 PCIe 数据包",
            ),
            description=Text(
                "{{ $value | humanize }} replays in an hour ({{ $labels.uuid }}): reseat the card, check riser and slot.",
                "一小时内重传 {{ $value | humanize }} 次（{{ $labels.uuid }}）：请重新插卡，检查转接板与插槽。",
            ),
        ),
        Alert(
            name="GpuFabricProblem",
            severity=Severity.WARNING,
            component=Component.GPU,
            expr=select(m.GPU_FABRIC_PROBLEM_INFO).equals(1),
            lasting="10m",
            panel=CARD_LINKS,
            summary=Text(
                "Card {{ $labels.gpu }} of {{ $labels.instance }} cannot fully use the NVSwitch fabric: {{ $labels.problem }}",
                "{{ $labels.instance }} 的 {{ $labels.gpu }} 号卡无法充分使用 NVSwitch 网络：{{ $labels.problem }}",
            ),
            description=Text(
                "{{ $labels.problem }} for 10 minutes ({{ $labels.uuid }}). CUDA does not start on a card that has not "
                "joined, and collectives are slow on one that joined half: look at the fabric manager.",
                "{{ $labels.problem }} 已持续 10 分钟（{{ $labels.uuid }}）。未加入网络的卡无法启动 CUDA，"
                "部分加入的卡集合通信缓慢：请检查 fabric manager。",
            ),
        ),
    )

"""How long after a fault its finding, its verdict and its messages come, at the speed of the defaults.

    python -m tests.bench.detection [--only hang] [--processes 2] [--write]

GPUs are read each second, engines and gateways each 5 s, Prometheus scrapes each 15 s and evaluates the rules each 30 s
(GpuLost each 15 s), and Alertmanager groups as generated; all on a virtual clock.  ``--write`` writes docs/detection.md and its Chinese sibling.
"""

from __future__ import annotations

import argparse
import logging
import multiprocessing
import sys
from pathlib import Path
from typing import NamedTuple

from exporter.model.finding import VerdictState
from exporter.model.text import Language, Text
from tests.support import servers
from tests.support.fault_messages import firings, notified
from tests.support.prometheus_replay import Replay, lines
from tests.support.soak_day import read_families
from tests.support.virtual_node import UNIX_START, VirtualNode

ROOT = Path(__file__).parents[2]
PAGES = {Language.ENGLISH: ROOT / "docs" / "detection.md", Language.CHINESE: ROOT / "docs" / "zh" / "detection.md"}
FAULT_AT, SCRAPE, EVALUATE = 600, 15, 30  # seconds
STEP = 0.5  # seconds of the simulated world


class Case(NamedTuple):
    """A scenario whose fault lasts; ``at``: seconds after the start, 0 where the fault is how the nodes are built."""

    name: str
    fault: Text
    at: int = FAULT_AT
    nodes: int = 1
    lasts: int = 900  # seconds


CASES = (
    Case("hang", Text("GPU 6 falls off the bus, its replica freezes", "6 号卡从总线掉落，其副本冻结")),
    Case(
        "nic", Text("a network port flaps and goes down, its replica freezes", "网卡端口反复断开后断开，其副本冻结")
    ),
    Case("oom", Text("GPU 5 runs full within 40 s, requests fail", "5 号卡的显存在 40 秒内占满，请求失败")),
    Case("heat", Text("the cooler of GPU 2 fails: it heats up, then throttles", "2 号卡散热器故障：先升温，再降频")),
    Case("powercap", Text("the power limit of GPU 5 is lowered", "5 号卡的功率上限被调低")),
    Case("brake", Text("the power brake slows GPU 1 down", "1 号卡被功率制动")),
    Case("tenant", Text("another tenant's process starts on GPU 6", "其他租户的进程开始在 6 号卡上运行")),
    Case("narrow", Text("the PCIe link of GPU 3 keeps a quarter of its lanes", "3 号卡的 PCIe 链路只剩四分之一通道")),
    Case("pcie", Text("eight GPUs without NVLink between them", "八张卡之间没有 NVLink"), at=0),
    Case("skew", Text("the scheduler prefers the first ranks", "调度器偏向前面的 rank"), at=0),
    Case(
        "drift",
        Text("two nodes differ in driver and engine", "两个节点的驱动与引擎版本不同"),
        at=0,
        nodes=2,
        lasts=2400,
    ),
)


Found = tuple[tuple[float, str], ...]  # (seconds after the fault, name) of what came first, none where nothing came


class Row(NamedTuple):
    """What came of a fault."""

    case: Case
    finding: Found
    verdicts: Found
    ticket: Found
    page: Found


def live(case: Case, number: int, folder: Path):
    """Write the samples of a node; return the first finding since the fault, and the first drain and eject."""
    logging.disable(logging.WARNING)
    node = VirtualNode(case.name, seed=1, node=number, fault_at=case.at or None, step=STEP)
    target, wanted = f'job="{case.name}",instance="n{number + 1}:9853"', read_families()
    finding, verdicts = (), {}
    with (folder / f"{case.name}-{number}.om").open("w", encoding="utf-8") as file:
        for now in node.live(case.at + case.lasts):
            snapshot = node.publisher.snapshot
            if now % SCRAPE == 0:
                file.writelines(lines(node.page(), target, int(UNIX_START + now), wanted))
            if now <= case.at:
                continue
            if not finding and snapshot.findings:
                finding = ((now - case.at, snapshot.findings[0].id),)
            for verdict in snapshot.verdicts.replicas.values():
                if verdict.state in (VerdictState.DRAIN, VerdictState.EJECT):
                    verdicts.setdefault(verdict.state.value, now - case.at)
    return finding, tuple((after, state) for state, after in verdicts.items())


def rows(cases: tuple[Case, ...], processes: int):
    """Return what came of each case."""
    with servers.scratch() as folder:
        nodes = [(case, number, Path(folder)) for case in cases for number in range(case.nodes)]
        with multiprocessing.Pool(processes, maxtasksperchild=1) as pool:
            seen = pool.starmap(live, nodes, chunksize=1)
        first = {case.name: found for (case, number, _), found in zip(nodes, seen, strict=True) if number == 0}
        replay = Replay(
            folder,
            hours=max(case.at + case.lasts for case in cases) / 3600,
            scrape=EVALUATE,
            lookback=f"{EVALUATE * 3 // 2}s",
        )
        replay.load([Path(folder) / f"{case.name}-{number}.om" for case, number, _ in nodes])
        fired = firings(replay, UNIX_START)
    for case in cases:
        end = case.at + case.lasts
        mine = [
            firing for firing in fired if firing.labels.get("job") == case.name and case.at <= firing.begin <= end
        ]
        sent = [(at - case.at, firing) for at, firing in notified(mine) if at <= end]
        yield Row(case, *first[case.name], *(_first(sent, severity) for severity in ("warning", "critical")))


def _first(sent, severity: str) -> Found:
    return tuple((after, firing.name) for after, firing in sent if firing.severity == severity)[:1]


HEADER = {
    Language.ENGLISH: """\
# Detection times

Generated by `.venv/bin/python -m tests.bench.detection --write`; do not edit. [中文](zh/detection.md)

How long after a fault of the simulator the finding, the verdict and the first messages come, at the speed of the
defaults: GPUs are read each second, engines and gateways each 5 s, Prometheus scrapes each 15 s and evaluates the rules
each 30 s (`GpuLost` each 15 s), and the generated Alertmanager configuration waits for more alerts of the same group. A
finding is in `shardwatch check`, on the web page and in `/api/v1`; a verdict is what load balancers and schedulers act
on. –: none, as it should be: a slow replica stays in service, and only what affects users now pages.
""",
    Language.CHINESE: """\
# 检测时间

由 `.venv/bin/python -m tests.bench.detection --write` 生成，请勿编辑。[English](../detection.md)

模拟器的各种故障发生后，诊断结果、判定与首条消息分别需要多久，采用默认速度：每秒读取 GPU，每 5 秒读取引擎与网关，Prometheus 每 15 秒抓取、每 30
秒计算规则（`GpuLost` 每 15 秒），生成的 Alertmanager 配置会等待同组的其他告警。诊断结果见 `shardwatch check`、节点页面与 `/api/v1`；负载均衡与调度器按判定行动。–
表示没有，且本应如此：变慢的副本继续服务，只有已影响用户的问题才发紧急告警。
""",
}
COLUMNS = (
    Text("scenario", "场景"),
    Text("fault", "故障"),
    Text("finding", "诊断结果"),
    Text("verdict of the replica", "副本的判定"),
    Text("first ticket", "首张工单"),
    Text("first page", "首条紧急告警"),
)
FOOTER = {
    Language.ENGLISH: """\
The faults of pcie, skew and drift are how the nodes are built: there the time counts from the first reading, and includes
that windows fill. nic flaps for a minute before its port goes down; heat counts from when the cooler fails, so most of
its time is the GPU heating up. That nodes differ is no finding of one node: `shardwatch check` of both names it at once.
""",
    Language.CHINESE: """\
pcie、skew 与 drift 的故障在于节点的构成：时间从首次读取算起，包含窗口填满的时间。nic 的端口先反复断开约一分钟；heat 从散热器故障算起，大部分时间是该卡在升温。节点之间的差异不是单个节点的诊断结果：对两个节点运行 `shardwatch check` 即可立即看到。
""",
}


def page(found: list[Row], language: Language) -> str:
    """Return the page of a language."""
    lines_ = [HEADER[language], "| " + " | ".join(column.in_(language) for column in COLUMNS) + " |"]
    lines_.append("|---|---|---|---|---|---|")
    for row in found:
        cells = (_cell(row.finding), _cell(row.verdicts), _cell(row.ticket), _cell(row.page))
        lines_.append(f"| {row.case.name} | {row.case.fault.in_(language)} | {' | '.join(cells)} |")
    return "\n".join([*lines_, "", FOOTER[language]])


def _cell(found: Found) -> str:
    return ", ".join(f"{after:.0f} s {name}" for after, name in found) or "–"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", help="one scenario")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--write", action="store_true", help="write the pages of the documentation")
    given = parser.parse_args()
    found = list(rows(tuple(case for case in CASES if given.only in (None, case.name)), given.processes))
    print(page(found, Language.ENGLISH))
    for language, path in PAGES.items() if given.write and given.only is None else ():
        path.write_text(page(found, language), encoding="utf-8")
    return 0 if all(row.ticket or row.page for row in found) else 1


if __name__ == "__main__":
    sys.exit(main())

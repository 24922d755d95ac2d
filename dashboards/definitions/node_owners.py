"""Node, owners: who holds the memory of which GPU, and which processes are left over."""

from __future__ import annotations

from alerts import panel_ids as ids
from dashboards.definitions.status import TO_GPU
from dashboards.no_data_text import Requires
from dashboards.panels import Cell, Panel, column, series, table, time_series
from dashboards.thresholds import ANY_WARNING
from dashboards.variables import NODE, selected
from exporter.catalog import metrics as m
from exporter.model.text import Text
from exporter.promql import Expr, join, max_by

GPU_LABELS = ("instance", "gpu")
OWNER = (*GPU_LABELS, "owner")
FACTS = ("workload", "slurm_job", "unit", "user")


def _with_facts(figures: Expr) -> Expr:
    """Return figures by owner, with what is known of the owner as labels."""
    facts = max_by(selected(m.GPU_OWNER_INFO), *NODE, "uuid", "owner", *FACTS)
    return join(figures, facts, on=(*NODE, "uuid", "owner"), group_left=FACTS)


OWNERS: tuple[Panel, ...] = (
    time_series(
        Text("Memory by owner", "显存（按使用者）"),
        Text(
            "Memory that processes hold, by pod, Slurm job, container, systemd unit or user. Two owners on one GPU "
            "share it: the second one is why the replica of the first has less.",
            "各进程占用的显存，按 Pod、Slurm 作业、容器、systemd 单元或用户。一张卡上有两个使用者即为共享："
            "后者占用多少，前者的副本就少多少。",
        ),
        series(lambda: max_by(selected(m.GPU_OWNER_MEMORY_BYTES), *OWNER), "{{instance}} GPU {{gpu}} {{owner}}"),
        requires=(Requires.OWNER,), drill_down=(TO_GPU,), width=12, height=10,
    ),
    table(
        Text("Owners of the GPUs", "各卡的使用者"),
        Text(
            "One row per GPU and owner. Leftover processes belong to an engine whose server has exited: end them to "
            "free their memory.",
            "每张卡、每个使用者一行。“残留进程”属于服务进程已退出的引擎：结束它们即可释放显存。",
        ),
        column(
            lambda: _with_facts(selected(m.GPU_ORPHAN_PROCESSES)), Text("Leftover processes", "残留进程"),
            cell=Cell.COLOUR, threshold=ANY_WARNING, decimals=0,
        ),
        column(
            lambda: _with_facts(selected(m.GPU_OWNER_MEMORY_BYTES)), Text("Memory", "显存"), cell=Cell.BAR,
            requires=(Requires.SUPPORT,),
        ),
        rows=(*OWNER, *FACTS), requires=(Requires.OWNER,), panel_id=ids.NODE_OWNERS, drill_down=(TO_GPU,), width=12, height=10,
    ),
)  # fmt: skip

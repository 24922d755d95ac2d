"""Fleet, details: versions that should agree, cost of tokens, unallocated GPUs."""

from __future__ import annotations

from alerts import panel_ids as ids
from dashboards.definitions.status import TO_NODE, TO_REPLICA
from dashboards.no_data_text import Requires
from dashboards.panels import Cell, Panel, bar_gauge, column, series, table
from dashboards.thresholds import TOP_N
from dashboards.variables import EXPORTER_WINDOW, by_replica, selected
from exporter.catalog import metrics as m
from exporter.catalog.spec import Unit
from exporter.model.text import Text
from exporter.promql import bottomk, count_by, max_by

ENGINE = (Requires.ENGINE,)


VERSIONS: tuple[Panel, ...] = (
    table(
        Text("Driver versions by node", "驱动版本（按节点）"),
        Text(
            "Nodes of one service should agree: a node with an old driver or CUDA version is slower without any "
            "error.",
            "同一服务的节点应一致：驱动或 CUDA 较旧的节点会变慢而不报错。",
        ),
        column(lambda: selected(m.GPU_DRIVER_INFO), Text("Seen", "已见"), cell=Cell.FACT),
        rows=("instance", "driver_version", "cuda_version"), width=12, height=7, panel_id=ids.FLEET_VERSIONS,
        drill_down=(TO_NODE,),
    ),
    table(
        Text("Versions loaded by GPU processes", "GPU 进程加载的版本"),
        Text(
            "Versions of NCCL, PyTorch, CUDA and engines that processes on the GPUs have loaded. Nodes of one service "
            "should agree: another NCCL can hang or slow a collective between nodes.",
            "GPU 进程加载的 NCCL、PyTorch、CUDA 与引擎版本。同一服务的节点应一致：NCCL 版本不同，跨节点集合通信可能挂起或变慢。",
        ),
        column(lambda: selected(m.GPU_SOFTWARE_INFO), Text("Seen", "已见"), cell=Cell.FACT),
        rows=("instance", "component", "version"), requires=(Requires.OWNER,), width=12, height=7, drill_down=(TO_NODE,),
    ),
    table(
        Text("Engine versions by replica", "引擎版本（按副本）"),
        Text(
            "Replicas of one model should run one version: different versions differ in speed and in what they "
            "measure.",
            "同一模型的副本应运行同一版本；版本不同，速度与指标口径都可能不同。",
        ),
        column(lambda: selected(m.LLM_ENGINE_INFO), Text("Seen", "已见"), cell=Cell.FACT),
        rows=("instance", "model", "replica", "engine", "version"), requires=ENGINE, width=12, height=7,
        drill_down=(TO_REPLICA,), panel_id=ids.FLEET_ENGINE_VERSIONS,
    ),
    table(
        Text("Images by replica", "镜像（按副本）"),
        Text(
            "Container image of each replica, where known. Replicas of one model should run one digest.",
            "各副本的容器镜像（若可知）。同一模型的副本应为同一 digest。",
        ),
        column(lambda: selected(m.LLM_IMAGE_INFO), Text("Seen", "已见"), cell=Cell.FACT),
        rows=("instance", "replica", "image", "digest"), requires=(Requires.IMAGE,), width=24, height=6,
    ),
    table(
        Text("Cost per million tokens", "每百万 token 成本"),
        Text(
            "Cost of a replica's GPUs per million generated tokens; idle time raises it.",
            "该副本各卡每生成百万 token 的成本；空闲会推高成本。",
        ),
        column(
            lambda: selected(m.LLM_COST_PER_MILLION_GENERATED_TOKENS, window=EXPORTER_WINDOW), Text("Cost", "成本"), cell=Cell.BAR,
        ),
        rows=("instance", "model", "replica", "currency"), requires=(Requires.PRICE, Requires.TRAFFIC), width=12, height=7,
    ),
    bar_gauge(
        Text("Share of GPUs in use by node", "在用 GPU 占比（按节点）"),
        Text(
            f"GPUs used by a replica over the node's GPUs, the {TOP_N} lowest nodes. Below 100 %: free capacity, "
            "or replicas whose GPUs are unknown (see Shardwatch health).",
            f"被副本占用的 GPU 占节点 GPU 数的比例（最低的 {TOP_N} 个节点）。低于 100 %：有空闲容量，或未能识别副本所用的 GPU（见 Shardwatch 健康）。",
        ),
        series(
            lambda: bottomk(
                TOP_N,
                count_by(max_by(by_replica(selected(m.GPU_UP)), "instance", "uuid"), "instance").as_unit(Unit.NONE)
                / count_by(selected(m.GPU_UP), "instance"),
            ),
            "{{instance}}",
        ),
        requires=ENGINE, max_value=1, width=12, height=7,
    ),
)  # fmt: skip

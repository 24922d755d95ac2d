"""Fleet, once nothing is on fire: versions that should agree, what tokens cost, cards that nobody holds."""

from __future__ import annotations

from alerts import panel_ids as ids
from alerts.text import Text
from dashboards.definitions.status import TO_NODE, TO_REPLICA
from dashboards.no_data_text import Requires
from dashboards.panels import Cell, Panel, bar_gauge, column, series, table
from dashboards.thresholds import TOP_N
from dashboards.variables import EXPORTER_WINDOW, by_replica, selected
from exporter.catalog import metrics as m
from exporter.catalog.spec import Unit
from exporter.promql import bottomk, count_by, max_by

ENGINE = (Requires.ENGINE,)


VERSIONS: tuple[Panel, ...] = (
    table(
        Text("Driver versions by node", "驱动版本（按节点）"),
        Text(
            "Nodes of one service should agree: a node on an old driver or CUDA is slower without any error.",
            "同一服务的节点应一致：驱动或 CUDA 较旧的节点会变慢而不报错。",
        ),
        column(lambda: selected(m.GPU_DRIVER_INFO), Text("Seen", "已见"), cell=Cell.FACT),
        rows=("instance", "driver_version", "cuda_version"), width=12, height=7, panel_id=ids.FLEET_VERSIONS,
        drill_down=(TO_NODE,),
    ),
    table(
        Text("Engine versions by replica", "引擎版本（按副本）"),
        Text(
            "Replicas of one model should run one version; different ones differ in speed and in what they "
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
            "Container image of each replica, where somebody says it. Replicas of one model should run one digest.",
            "各副本的容器镜像（若可知）。同一模型的副本应为同一 digest。",
        ),
        column(lambda: selected(m.LLM_IMAGE_INFO), Text("Seen", "已见"), cell=Cell.FACT),
        rows=("instance", "replica", "image", "digest"), requires=(Requires.IMAGE,), width=24, height=6,
    ),
    table(
        Text("Cost of a million tokens", "百万 token 成本"),
        Text(
            "Price of a replica's cards for the time of a million generated tokens; idle time makes it expensive.",
            "生成百万 token 所用时间内该副本各卡的价格；空闲会推高成本。",
        ),
        column(
            lambda: selected(m.LLM_COST_PER_MILLION_TOKENS, window=EXPORTER_WINDOW), Text("Cost", "成本"), cell=Cell.BAR,
        ),
        rows=("instance", "model", "replica", "currency"), requires=(Requires.PRICE, Requires.TRAFFIC), width=12, height=7,
    ),
    bar_gauge(
        Text("Share of cards in use, by node", "在用卡占比（按节点）"),
        Text(
            f"Cards that some replica uses, over the node's cards; the {TOP_N} nodes with the lowest share. Below 100 %: capacity that nobody holds, or "
            "replicas whose cards were not found (see Shardwatch itself).",
            f"被副本占用的卡占节点卡数的比例（最低的 {TOP_N} 个节点）。低于 100 %：有空闲容量，或未能识别副本所用的卡（见 Shardwatch 自身）。",
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

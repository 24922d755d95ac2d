"""When a figure may be without data, and the words that Grafana shows then.

A panel without data means one of three things, and they must not look alike: nothing to measure (no traffic),
nothing that can measure it (not supported, not configured, in the full set only), or nobody who measures (the exporter
is dead).  ``Needs`` tells the first two apart in the panel's no-value text; the third is a value of its own, see
``scope.or_dead``, and the status panels at the head of every board.
"""

from __future__ import annotations

from enum import Enum

from alerts.text import Text


class Needs(Enum):
    """What must be there for a figure to have data; a figure that needs nothing has it wherever a daemon runs."""

    TRAFFIC = "traffic"
    ENGINE = "engine"
    FULL = "full"
    NVLINK = "nvlink"
    GATEWAY = "gateway"
    PRICE = "price"
    TROUBLE = "trouble"
    RULES = "rules"
    RANKS = "ranks"
    REPLICAS = "replicas"
    SUPPORT = "support"
    PRESSURE = "pressure"
    XID = "xid"
    FANS = "fans"
    GROUPS = "groups"
    UNEVEN = "uneven"
    STRAGGLER = "straggler"
    ABSENT = "absent"
    MIG = "mig"
    IMAGE = "image"
    TLS = "tls"
    RAY = "ray"
    KIND = "kind"
    BATCH = "batch"
    NEWER = "newer"
    OLDER = "older"
    C2C = "c2c"
    SXID = "sxid"
    READ = "read"


NO_VALUE: dict[Needs, Text] = {
    Needs.TRAFFIC: Text("no traffic", "无流量"),
    Needs.ENGINE: Text("no engine found", "未发现推理引擎"),
    Needs.FULL: Text("needs series: full", "需要 series: full"),
    Needs.NVLINK: Text("no NVLink", "无 NVLink"),
    Needs.GATEWAY: Text("no gateway configured", "未配置网关"),
    Needs.PRICE: Text("no price: costs.gpu_hour", "未设价格：costs.gpu_hour"),
    Needs.TROUBLE: Text("none", "无"),
    Needs.RULES: Text("no alert fires", "无告警"),
    Needs.RANKS: Text("single rank", "仅一个 rank"),
    Needs.REPLICAS: Text("single replica", "仅一个副本"),
    Needs.SUPPORT: Text("not supported", "不支持"),
    Needs.PRESSURE: Text("not filling", "未在增长"),
    Needs.XID: Text("no XID seen", "未见 XID"),
    Needs.FANS: Text("passive cards", "被动散热"),
    Needs.UNEVEN: Text("even: nothing to explain", "均衡：无需归因"),
    Needs.GROUPS: Text("one card each", "各仅一张卡"),
    Needs.STRAGGLER: Text("nobody waits", "无人等待"),
    Needs.ABSENT: Text("nothing is missing", "无缺失"),
    Needs.MIG: Text("no divided card", "无 MIG 分区"),
    Needs.IMAGE: Text("image not known", "镜像未知"),
    Needs.TLS: Text("engines over plain HTTP", "引擎使用明文 HTTP"),
    Needs.RAY: Text("no Ray Serve", "无 Ray Serve"),
    Needs.KIND: Text("not of this kind of engine", "此类引擎没有"),
    Needs.BATCH: Text("engine times no batches", "引擎不按批次计时"),
    Needs.NEWER: Text("needs NVLink 5", "需要 NVLink 5"),
    Needs.OLDER: Text("only before Ampere", "仅 Ampere 之前的卡"),
    Needs.READ: Text("never read", "从未读到"),
    Needs.SXID: Text("no SXid seen", "未见 SXid"),
    Needs.C2C: Text("no C2C link", "无 C2C 链路"),
}
NO_DATA = Text("no data: is Shardwatch scraped?", "无数据：Prometheus 抓取了 Shardwatch 吗？")
OR_DEAD = Text(" (or the exporter is dead: see the top row)", "（或采集器失联：见首行）")
DEAD_TEXT = Text("exporter dead", "采集器已停")

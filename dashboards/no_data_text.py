"""The texts that Grafana shows where a panel has no data.

A panel has no data for one of three reasons, which must look different: there is nothing to measure (no traffic), the
signal is not available (not supported, not configured, only in the full set of series), or the exporter is down.
``Requires`` gives the panel's no-value text for the first two; for the third, see ``Panel.exporter_down`` and the
status row of every dashboard.
"""

from __future__ import annotations

from enum import Enum

from exporter.model.text import Text


class Requires(Enum):
    """What a query needs to have data; a query without requirements has data wherever the exporter runs."""

    TRAFFIC = "traffic"
    ENGINE = "engine"
    FULL = "full"
    NVLINK = "nvlink"
    GATEWAY = "gateway"
    PICKER = "picker"
    STORE = "store"
    PRICE = "price"
    MODEL_PRICE = "model_price"
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
    ACCESS = "access"
    RAY = "ray"
    KIND = "kind"
    FEATURE = "feature"
    BATCH = "batch"
    NEWER = "newer"
    OLDER = "older"
    C2C = "c2c"
    SXID = "sxid"
    READ = "read"
    OWNER = "owner"
    NIC = "nic"
    MULTI_NODE = "multi_node"
    PUSH = "push"


NO_VALUE: dict[Requires, Text] = {
    Requires.TRAFFIC: Text("no traffic", "无流量"),
    Requires.ENGINE: Text("no engine found", "未发现推理引擎"),
    Requires.FULL: Text("needs series: full", "需要 series: full"),
    Requires.NVLINK: Text("no NVLink", "无 NVLink"),
    Requires.GATEWAY: Text("no gateway configured", "未配置网关"),
    Requires.PICKER: Text("no endpoint picker", "无端点选择器"),
    Requires.STORE: Text("no KV-cache store configured", "未配置 KV 缓存存储"),
    Requires.PRICE: Text("no price: costs.gpu_hour", "未设价格：costs.gpu_hour"),
    Requires.MODEL_PRICE: Text("no price: costs.models", "未设价格：costs.models"),
    Requires.TROUBLE: Text("none", "无"),
    Requires.RULES: Text("no alert fires", "无告警"),
    Requires.RANKS: Text("single rank", "仅一个 rank"),
    Requires.REPLICAS: Text("single replica", "仅一个副本"),
    Requires.SUPPORT: Text("not supported", "不支持"),
    Requires.PRESSURE: Text("not growing", "未在增长"),
    Requires.XID: Text("no XID seen", "未见 XID"),
    Requires.FANS: Text("passively cooled", "被动散热"),
    Requires.UNEVEN: Text("balanced", "均衡"),
    Requires.GROUPS: Text("one GPU each", "各仅一张卡"),
    Requires.STRAGGLER: Text("no straggler", "无慢卡"),
    Requires.ABSENT: Text("none missing", "无缺失"),
    Requires.PUSH: Text("no push configured", "未配置推送"),
    Requires.NIC: Text("no RDMA adapter", "无 RDMA 网卡"),
    Requires.MULTI_NODE: Text("no replica spans nodes", "没有跨节点的副本"),
    Requires.MIG: Text("MIG not enabled", "未启用 MIG"),
    Requires.IMAGE: Text("image unknown", "镜像未知"),
    Requires.TLS: Text("engines over plain HTTP", "引擎使用明文 HTTP"),
    Requires.ACCESS: Text("daemons without TLS and users", "守护进程未启用 TLS 与用户"),
    Requires.RAY: Text("no Ray Serve", "无 Ray Serve"),
    Requires.FEATURE: Text("feature not in use", "未使用该功能"),
    Requires.KIND: Text("not provided by this engine", "此类引擎不提供"),
    Requires.BATCH: Text("no batch timing", "引擎不按批次计时"),
    Requires.NEWER: Text("needs NVLink 5", "需要 NVLink 5"),
    Requires.OLDER: Text("only before Ampere", "仅 Ampere 之前的卡"),
    Requires.READ: Text("never read", "从未读到"),
    Requires.SXID: Text("no SXid seen", "未见 SXid"),
    Requires.OWNER: Text("no process on a GPU", "卡上无进程"),
    Requires.C2C: Text("no C2C link", "无 C2C 链路"),
}
NO_DATA = Text("no data: is Shardwatch scraped?", "无数据：Prometheus 抓取了 Shardwatch 吗？")
OR_EXPORTER_DOWN = Text(" (or the exporter is down: see the top row)", "（或采集器失联：见首行）")
EXPORTER_DOWN_TEXT = Text("exporter down", "采集器失联")

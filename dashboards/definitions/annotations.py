"""Annotations of the dashboards: alerts, XID errors, and restarts that explain a discontinuity."""

from __future__ import annotations

from dataclasses import replace

from dashboards.panels import Annotation
from dashboards.panels.panel import Colour
from dashboards.variables import NODE, RANGE_START, RATE_INTERVAL, selected
from exporter.catalog import metrics as m
from exporter.catalog.spec import Unit
from exporter.model.text import Text
from exporter.promql import (
    ALERTS,
    TARGET,
    Expr,
    ExternalMetric,
    count_by,
    increase,
    join,
    max_by,
    regex,
    resets,
    select,
)

STARTED = ExternalMetric(name="process_start_time_seconds", labels=TARGET, unit=Unit.SECONDS)
_STEP = "$__interval"
_GAP = "1h"  # an engine that is away for longer was not restarted but deployed again


def _moment(time: Expr) -> Expr:
    """Return times as milliseconds since 1970, where they lie within the time range."""
    return (time * 1000 > RANGE_START).as_unit(Unit.SECONDS)


def _engines() -> Expr:
    """Return replicas whose counters were reset since the previous step.

    Loading a model takes minutes without any sample, so a window of one step contains no reset. Compared are the resets
    within one hour, now and one step ago.
    """
    tokens = selected(m.LLM_GENERATION_TOKENS_TOTAL)
    now, before = (max_by(resets(counter, _GAP), "instance", "replica") for counter in (tokens, tokens.offset(_STEP)))
    return (now > before) | (max_by(resets(tokens, RATE_INTERVAL), "instance", "replica") > 0)


def _firing(severity: str) -> Expr:
    return select(
        ALERTS, alertstate="firing", job=regex("$job|"), instance=regex("$instance|"), severity=regex(severity)
    )


ALERTING = Annotation(
    name=Text("Firing alerts", "触发的告警"), expr=_firing("critical|warning"), colour=Colour.CRITICAL, title=Text("{{alertname}}", "{{alertname}}"),
    text="{{severity}} {{instance}}",
)  # fmt: skip
# Of many nodes some always have warnings: one annotation per alert, critical ones only.
PAGING = Annotation(
    name=Text("Firing critical alerts", "触发的紧急告警"), expr=count_by(_firing("critical"), "alertname", "severity"),
    colour=Colour.CRITICAL, title=Text("{{alertname}}", "{{alertname}}"), text="{{severity}}",
)  # fmt: skip
XID = Annotation(
    name=Text("XID events", "XID 事件"),
    expr=_moment(max_by(selected(m.GPU_XID_LAST_TIMESTAMP_SECONDS), "instance", "gpu", "xid")),
    colour=Colour.WARNING, title=Text("XID {{xid}}", "XID {{xid}}"), text="{{instance}} GPU {{gpu}}", timed=True,
)  # fmt: skip
SXID = Annotation(
    name=Text("NVSwitch errors", "NVSwitch 错误"),
    expr=_moment(max_by(selected(m.GPU_NVSWITCH_SXID_LAST_TIMESTAMP_SECONDS), "instance", "pci_bus_id", "sxid")),
    colour=Colour.WARNING, title=Text("SXid {{sxid}}", "SXid {{sxid}}"), text="{{instance}} {{pci_bus_id}}", timed=True,
)  # fmt: skip
ENGINE = Annotation(
    name=Text("Engine restarts", "引擎重启"), expr=_engines(), colour=Colour.PLAIN, title=Text("{{replica}} restarted", "{{replica}} 已重启"),
    text="{{instance}}",
)  # fmt: skip
DAEMON = Annotation(
    name=Text("Shardwatch starts", "Shardwatch 启动"),
    expr=_moment(join(selected(STARTED), selected(m.SHARDWATCH_BUILD_INFO), on=NODE, group_left=("version",)).as_unit(Unit.SECONDS)),
    colour=Colour.OFF, title=Text("Shardwatch {{version}} started", "Shardwatch {{version}} 已启动"), text="{{instance}}", timed=True,
)  # fmt: skip
CONFIGURED = Annotation(
    name=Text("Configuration reloads", "配置加载"),
    expr=_moment(selected(m.SHARDWATCH_CONFIG_LAST_RELOAD_SUCCESS_TIMESTAMP_SECONDS)),
    colour=Colour.UNKNOWN, title=Text("configuration loaded", "已加载配置"), text="{{instance}}", timed=True,
)  # fmt: skip
GATEWAY = Annotation(
    name=Text("Gateway restarts", "网关重启"),
    expr=max_by(increase(selected(m.GATEWAY_RESTARTS_TOTAL), RATE_INTERVAL), "instance", "gateway") > 0,
    colour=Colour.PLAIN, title=Text("{{gateway}} restarted", "{{gateway}} 已重启"), text="{{instance}}",
)  # fmt: skip

# A rolling update of a thousand nodes would cover the graphs of Fleet: off by default there.
OF_FLEET = (PAGING, XID, SXID, replace(ENGINE, on=False), replace(DAEMON, on=False))
OF_NODE = (ALERTING, XID, SXID, ENGINE, DAEMON)
OF_GPUS = OF_NODE  # with restarts: shows whether an engine restarted because of an XID
OF_BALANCE = (*OF_NODE, GATEWAY)
OF_DAEMON = (*OF_NODE, CONFIGURED)

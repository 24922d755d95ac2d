"""The dashboards' files against what Grafana itself declares: its TypeScript types, and the SDK generated from them."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.support.dashboard_queries import LANGUAGES, UIDS, dashboard, panels
from tests.support.npm import CACHE, node_modules

MODULES = {
    "stat": "stat/panelcfg/x/StatPanelCfg", "timeseries": "timeseries/panelcfg/x/TimeSeriesPanelCfg",
    "table": "table/panelcfg/x/TablePanelCfg", "bargauge": "bargauge/panelcfg/x/BarGaugePanelCfg",
    "gauge": "gauge/panelcfg/x/GaugePanelCfg", "heatmap": "heatmap/panelcfg/x/HeatmapPanelCfg",
    "state-timeline": "statetimeline/panelcfg/x/StateTimelinePanelCfg",
    "status-history": "statushistory/panelcfg/x/StatusHistoryPanelCfg", "text": "text/panelcfg/x/TextPanelCfg",
}  # fmt: skip
WITH_FIELDS = ("timeseries", "heatmap", "state-timeline", "status-history")
# JSON knows strings where the types want enum members: each enum is widened to the strings that it stands for.
# Grafana's own files have a null under the lowest threshold step, which its types do not allow: the test takes it out.
WIDEN = """
type Wide<T> = T extends string ? `${T}` : T extends number ? T : T extends boolean ? T
  : T extends (infer U)[] ? Wide<U>[] : T extends object ? { [K in keyof T]: Wide<T[K]> } : T;
"""


@pytest.fixture(scope="module")
def compiler():
    """Return tsc with @grafana/schema."""
    return node_modules() / ".bin" / "tsc"


def program():
    """Return a TypeScript program in which every panel of every dashboard is a typed constant."""
    time_series = ["import type * as schema from '@grafana/schema';"]
    for place, (kind, path) in enumerate(MODULES.items()):
        name = f"@grafana/schema/dist/esm/raw/composable/{path}_types.gen"
        time_series.append(f"import type * as kind{place} from '{name}'; // {kind}")
    time_series.append(WIDEN)
    for uid in UIDS:
        data = dashboard(uid)
        rows = [dict(item, panels=[]) for item in data["panels"] if item["type"] == "row"]
        panels_found = list(panels(data))
        # What Prometheus' annotations have beyond every data source's: titles, texts, and the query itself.
        time_series += [
            _constant(
                annotation["name"],
                "Wide<schema.AnnotationQuery> & Record<string, unknown>",
                dict(annotation, target={"refId": "Anno"}),
            )
            for annotation in data["annotations"]["list"]
        ]
        time_series.append(
            _constant("Dashboard", "Wide<schema.Dashboard>", dict(data, panels=[], annotations={"list": []}))
        )
        time_series += [_constant("row", "Wide<schema.RowPanel>", row) for row in rows]
        for panel in panels_found:
            time_series += _panel(panel)
    return "\n".join(time_series)


_count = iter(range(1_000_000))


def _constant(title, kind, value):
    name = f"c{next(_count)}"
    return f"// {title}\nexport const {name}: {kind} = {json.dumps(value, ensure_ascii=False)};"


def _panel(panel):
    title, kind = f"{panel['type']}: {panel['title']}", panel["type"]
    rest = dict(panel, options={})
    if "fieldConfig" in panel:
        config = json.loads(json.dumps(panel["fieldConfig"]).replace('"value": null', '"value": 0'))
        custom = config["defaults"].pop("custom", {})
        rest["fieldConfig"] = config
        if kind in WITH_FIELDS:
            yield _constant(title, f"Wide<kind{list(MODULES).index(kind)}.FieldConfig>", custom)
        elif kind == "table":
            yield _constant(title, "Partial<Wide<schema.TableFieldOptions>>", custom)
            for override in config["overrides"]:
                for item in override["properties"]:
                    if item["id"] == "custom.cellOptions":
                        yield _constant(title, "Wide<schema.TableCellOptions>", item["value"])
        else:
            assert not custom, title
    targets = rest.pop("targets", [])
    yield _constant(title, "Wide<schema.Panel>", rest)
    for target in targets:
        yield _constant(title, "Wide<schema.DataQuery> & Record<string, unknown>", target)
    if kind in MODULES:
        # Grafana 13.2 gave the gauge new shapes, which the SDK would lose; what is left out gets Grafana's defaults.
        whole = f"Wide<kind{list(MODULES).index(kind)}.Options>"
        yield _constant(title, f"Partial<{whole}>" if kind == "gauge" else whole, panel["options"])


OPTIONS = {
    "strict": True, "noEmit": True, "target": "es2022", "module": "nodenext", "moduleResolution": "nodenext",
    "skipLibCheck": True, "types": [],
}  # fmt: skip


def compile_(compiler, text, name):
    place = CACHE / f"{name}.ts"
    place.write_text(text, encoding="utf-8")
    (CACHE / f"{name}.json").write_text(json.dumps({"compilerOptions": OPTIONS, "files": [place.name]}))
    return subprocess.run(
        ["node", str(compiler), "-p", f"{name}.json"], cwd=CACHE, capture_output=True, text=True, timeout=170
    )


@pytest.mark.slow
def test_grafanas_own_types_accept_every_panel(compiler):
    done = compile_(compiler, program(), "dashboards")
    assert done.returncode == 0, done.stdout[:4000]


@pytest.mark.slow
def test_the_types_find_what_is_wrong(compiler):
    """A gate that accepts anything would be none."""
    uid = UIDS[0]
    panel = next(item for item in panels(dashboard(uid)) if item["type"] == "timeseries")
    panel["options"]["legend"]["displayMode"] = "sideways"
    panel["fieldConfig"]["defaults"]["decimals"] = "two"
    text = "\n".join([program().split("// Dashboard")[0], *_panel(panel)])
    done = compile_(compiler, text, "wrong")
    assert "sideways" in done.stdout and "'string' is not assignable to type 'number'" in done.stdout


@pytest.mark.filterwarnings("ignore:Prefer using dashboardv2:DeprecationWarning")  # dashboards are classic on purpose
@pytest.mark.skipif(sys.version_info < (3, 11), reason="grafana-foundation-sdk needs Python 3.11")
@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("uid", UIDS)
def test_the_sdk_keeps_every_key(uid, language):
    """What Grafana's types do not know is lost on the way through them."""
    from grafana_foundation_sdk.cog.encoder import JSONEncoder
    from grafana_foundation_sdk.cog.plugins import register_default_plugins
    from grafana_foundation_sdk.models.dashboard import Dashboard

    register_default_plugins()
    data = dashboard(uid, language)
    back = json.loads(json.dumps(Dashboard.from_json(data), cls=JSONEncoder))
    lost = [item for item in differences(data, back) if item != ".id"]  # it stands there as null, and means the same
    assert lost == []


def differences(given, back, path=""):
    if isinstance(given, dict) and isinstance(back, dict):
        for key, value in given.items():
            if key in back:
                yield from differences(value, back[key], f"{path}.{key}")
            else:
                yield f"{path}.{key}"
    elif isinstance(given, list) and isinstance(back, list) and len(given) == len(back):
        for place, (item, other) in enumerate(zip(given, back)):
            yield from differences(item, other, f"{path}[{place}]")
    elif given != back:
        yield path

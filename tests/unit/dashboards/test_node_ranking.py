"""Which node stands first on Fleet: the one that pages, before all that only warn; and versions that drifted apart."""

from __future__ import annotations

import pytest

from tests.support.dashboard_promtool import answered
from tests.support.dashboard_queries import LANGUAGES, dashboard, filled, panels

TITLES = {"en": "Nodes by severity", "zh": "节点（最严重在前）"}
DRIFT = {"en": "Version mismatches", "zh": "版本不一致"}
SORTED_BY = {"en": ["Critical", "Problems"], "zh": ["紧急告警", "问题数"]}
CARD = 'gpu="0",uuid="GPU-0"'
WHOSE = 'replica="chat",engine="vllm",model="llama"'


def panel(title, language="en"):
    return next(item for item in panels(dashboard("shardwatch-fleet", language)) if item["title"] == title)


def node(name, up=1):
    target = f'job="shardwatch",instance="{name}"'
    return {
        f"up{{{target}}}": f"{up}x200",
        f'shardwatch_build_info{{{target},version="1",python_version="3"}}': "1x200" if up else "1x20 _x180",
        f"gpu_up{{{target},{CARD}}}": "1x200",
        f"llm_up{{{target},{WHOSE}}}": "1x200",
    }


def figures(promtool, tmp_path, series, language="en"):
    """Return {node: [pages, problems]}."""
    values: dict[str, list[float]] = {}
    for target in panel(TITLES[language], language)["targets"][:2]:
        for labels, value in answered(promtool, tmp_path, filled(target["expr"]), series, minute=15):
            values.setdefault(labels["instance"], []).append(value)
    return values


# What is wrong with a node, as its series show it: [pages, problems].
WRONG = {
    "engine down": ({f"llm_up{{T,{WHOSE}}}": "0x200"}, [1, 1]),
    "engine frozen": ({f"llm_frozen{{T,{WHOSE}}}": "1x200"}, [1, 1]),
    "GPU lost": ({f"gpu_up{{T,{CARD}}}": "0x200"}, [1, 1]),
    "failing": ({f'llm_error_ratio{{T,{WHOSE},window="5m"}}': "0.2x200"}, [1, 1]),
    "failing a little": ({f'llm_error_ratio{{T,{WHOSE},window="5m"}}': "0.02x200"}, [0, 1]),
    "memory lost": (
        {f'gpu_ecc_errors_total{{T,{CARD},error="uncorrected",scope="volatile",memory="all"}}': "3x200"}, [0, 1],
    ),
    "remap failed": ({f"gpu_row_remap_failed{{T,{CARD}}}": "1x200"}, [0, 1]),
    "remap pending": ({f"gpu_row_remap_pending{{T,{CARD}}}": "1x200"}, [0, 1]),
    "reset due": ({f'gpu_recovery_action{{T,{CARD},action="gpu_reset"}}': "1x200"}, [0, 1]),
    "nvlink down": ({f"gpu_nvlink_links_down{{T,{CARD}}}": "2x200"}, [0, 1]),
    "pcie degraded": ({f"gpu_pcie_link_degraded{{T,{CARD}}}": "1x200"}, [0, 1]),
    "xid": ({f'gpu_xid_last_timestamp_seconds{{T,{CARD},xid="79",source="nvml+kernel_log"}}': "600x200"}, [0, 1]),
    "fabric": ({f'gpu_fabric_problem_info{{T,{CARD},problem="x"}}': "1x200"}, [0, 1]),
    "switch": (
        {'gpu_nvswitch_sxid_last_timestamp_seconds{T,pci_bus_id="0",sxid="20034",severity="fatal"}': "600x200"}, [1, 1],
    ),
    "wedged": ({'ALERTS{T,alertname="EngineNoTokens",alertstate="firing",severity="critical"}': "1x200"}, [1, 1]),
}  # fmt: skip


@pytest.mark.parametrize("language", LANGUAGES)
def test_each_fault_of_a_node_counts_and_what_pages_counts_first(promtool, tmp_path, language):
    series, wanted = node("well"), {"well": [0, 0]}
    for name, (own, counts) in WRONG.items():
        target = f'job="shardwatch",instance="{name}"'
        series |= node(name) | {key.replace("{T,", f"{{{target},"): values for key, values in own.items()}
        wanted[name] = counts
    series |= node("down", up=0)
    wanted["down"] = [1, 1]
    assert figures(promtool, tmp_path, series, language) == wanted


def test_an_alert_and_the_symptom_that_it_is_about_are_not_counted_twice(promtool, tmp_path):
    target = 'job="shardwatch",instance="n1"'
    series = node("n1") | {
        f"llm_up{{{target},{WHOSE}}}": "0x200",
        f'ALERTS{{{target},alertname="EngineDown",alertstate="firing",severity="critical"}}': "1x200",
    }
    assert figures(promtool, tmp_path, series) == {"n1": [1, 1]}


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_node_that_pages_stands_above_any_number_of_lesser_problems(language):
    sort = panel(TITLES[language], language)["options"]["sortBy"]
    assert sort == [{"displayName": name, "desc": True} for name in SORTED_BY[language]]


@pytest.mark.parametrize("language", LANGUAGES)
def test_versions_that_drifted_apart_are_a_figure_in_an_open_row(promtool, tmp_path, language):
    open_titles = {item["title"] for item in dashboard("shardwatch-fleet", language)["panels"]}
    assert DRIFT[language] in open_titles
    expr = filled(panel(DRIFT[language], language)["targets"][0]["expr"])

    def differing(*versions):
        series = {}
        for number, (driver, engine) in enumerate(versions):
            target = f'job="shardwatch",instance="n{number}"'
            series |= node(f"n{number}") | {
                f'gpu_driver_info{{{target},driver_version="{driver}",cuda_version="12.8"}}': "1x200",
                f'llm_engine_info{{{target},{WHOSE},version="{engine}"}}': "1x200",
            }
        return [value for _, value in answered(promtool, tmp_path, expr, series, minute=5)]

    assert differing(("570", "0.9"), ("570", "0.9")) == [0]
    assert differing(("570", "0.9"), ("575", "0.9"), ("570", "0.9")) == [1]
    assert differing(("570", "0.9"), ("575", "0.10")) == [2]

"""What stops the build of a dashboard rather than mislead somebody at night."""

from __future__ import annotations

import subprocess
import sys

import pytest

from alerts import panel_ids as ids
from alerts.thresholds import DEFAULTS
from dashboards.__main__ import main
from dashboards.dashboard import Row, reject_duplicates, reject_overlaps
from dashboards.errors import DashboardError
from dashboards.panels import NumberFormat, column, series, stat, table, time_series
from dashboards.variables import selected
from exporter.catalog import metrics as m
from exporter.model.text import Language
from exporter.promql import sum_by
from tests.support.dashboard_queries import dashboard
from tests.support.dashboard_samples import SHOWS, TITLE, T, panel, small
from tests.support.records import replace


def test_a_vanished_metric_names_the_panel():
    with pytest.raises(DashboardError, match=r"^Power by GPU: .*GPU_GONE"):
        panel(lambda: selected(m.GPU_GONE))


def test_a_dropped_label_names_the_panel():
    with pytest.raises(DashboardError, match=r"^Power by GPU: .*has no label 'sensor'"):
        panel(lambda: selected(m.GPU_POWER_WATTS, sensor="gpu"))
    with pytest.raises(DashboardError, match=r"^Power by GPU: the legend names 'gpu'"):
        panel(lambda: sum_by(selected(m.GPU_POWER_WATTS), "instance"))
    with pytest.raises(DashboardError, match=r"^GPUs: .*has no label 'rank'"):
        table(T("GPUs", "GPU"), SHOWS, column(lambda: selected(m.GPU_UP), T("Up", "在线")), rows=("gpu", "rank"))


@pytest.mark.parametrize(
    "made, why",
    [
        (lambda: panel(threshold=DEFAULTS.gpu_memory_used), "a threshold in RATIO against a figure in watt"),
        (lambda: panel(lambda: selected(m.GPU_ENERGY_JOULES_TOTAL)), "is a raw counter"),
        (lambda: panel(legend=" "), "without a legend"),
        (lambda: time_series(TITLE, SHOWS), "without a query"),
        (lambda: time_series(T("", ""), SHOWS, series(lambda: selected(m.GPU_UP), "{{gpu}}")), "title is missing"),
        (
            lambda: time_series(TITLE, T("Watts.", ""), series(lambda: selected(m.GPU_UP), "x")),
            "description is missing",
        ),
        (
            lambda: panel(
                lambda: selected(m.GPU_POWER_WATTS) * selected(m.GPU_UTILIZATION_RATIO) * selected(m.GPU_POWER_WATTS)
            ),
            "unit",
        ),
        (
            lambda: time_series(
                TITLE,
                SHOWS,
                series(lambda: selected(m.GPU_POWER_WATTS), "a"),
                series(lambda: selected(m.GPU_UP), "b"),
            ),
            "one axis for short, watt",
        ),
        (
            lambda: stat(
                TITLE, SHOWS, series(lambda: selected(m.GPU_POWER_WATTS), "w", number_format=NumberFormat.REQUESTS)
            ),
            "cannot be shown",
        ),
    ],
)
def test_a_panel_that_would_mislead_is_refused(made, why):
    with pytest.raises(DashboardError, match=why):
        made()


def test_two_panels_of_one_title_in_a_row_are_refused():
    with pytest.raises(DashboardError, match="Test, row One: two panels are called 'Power by GPU'"):
        small(Row(title=T("One", "一"), panels=(panel(), panel()))).render(Language.ENGLISH)


def test_panels_of_different_height_in_a_line_and_too_wide_ones_are_refused():
    first, other = panel(), replace(panel(), title=T("Other", "另"), height=5)
    with pytest.raises(DashboardError, match="5 high in a line of 8"):
        small(Row(title=T("One", "一"), panels=(first, other))).render(Language.ENGLISH)
    with pytest.raises(DashboardError, match="25 columns"):
        small(Row(title=T("One", "一"), panels=(replace(first, width=25),))).render(Language.ENGLISH)


def test_more_panels_than_anybody_reads_are_refused():
    many = tuple(replace(panel(), title=T(f"Panel {number}", "面板")) for number in range(13))
    with pytest.raises(DashboardError, match="13 open panels; the limit is 12"):
        small(Row(title=T("One", "一"), panels=many)).render(Language.ENGLISH)
    small(Row(title=T("One", "一"), panels=many, collapsed=True)).render(Language.ENGLISH)


def test_overlapping_panels_and_one_id_twice_are_refused():
    data = dashboard("shardwatch-node")
    first, second = [item for item in data["panels"] if item["type"] != "row"][:2]
    kept = dict(second["gridPos"])
    second["gridPos"] = dict(first["gridPos"])
    with pytest.raises(DashboardError, match="GPUs lost overlaps Exporters down"):
        reject_overlaps(data)
    second["gridPos"] = dict(kept, x=22)
    with pytest.raises(DashboardError, match="outside of the 24 columns"):
        reject_overlaps(data)
    second["gridPos"], second["id"] = kept, first["id"]
    with pytest.raises(DashboardError, match="the id .* occurs twice"):
        reject_overlaps(data)


def test_two_dashboards_of_one_uid_or_title_are_refused():
    row = Row(title=T("One", "一"), panels=(panel(),))
    with pytest.raises(DashboardError, match="uid shardwatch-node"):
        reject_duplicates([small(row), small(row, title="Other")])
    with pytest.raises(DashboardError, match="title Test"):
        reject_duplicates([small(row), small(row, uid=ids.DashboardUid.FLEET)])


def test_a_wrong_dashboard_ends_the_command_with_its_message(monkeypatch, capsys):
    def broken(_language, _traces):
        raise DashboardError("Power by GPU: gone")

    monkeypatch.setattr("dashboards.__main__.files", broken)
    assert main(["--check"]) == 1
    assert capsys.readouterr().err == "python -m dashboards: Power by GPU: gone\n"


@pytest.mark.parametrize("options", [[], ["--check"]])
def test_without_the_extra_the_command_says_what_to_install(options, tmp_path):
    code = "import sys; sys.modules['grafanalib'] = None; from dashboards.__main__ import main; sys.exit(main())"
    command = [sys.executable, "-c", code, "--output", str(tmp_path / "dashboards"), *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert "pip install 'shardwatch[dashboards]'" in line
    assert not (tmp_path / "dashboards").exists()

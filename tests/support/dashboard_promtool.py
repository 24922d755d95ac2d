"""A query of a dashboard, answered by a real Prometheus over series that a test writes down."""

from __future__ import annotations

import re
import subprocess

import yaml

EVERY = 5  # seconds between two scrapes
_SAMPLE = re.compile(r"\{([^}]*)\} (\S+)")
_LABEL = re.compile(r'(\w+)="([^"]*)"')


def answered(promtool, tmp_path, expr, series, *, minute):
    """Evaluate at a minute; return [(labels, value)], as promtool's complaint about an impossible expectation tells it."""
    asked = [{"expr": expr, "eval_time": f"{minute}m", "exp_samples": [{"labels": '{im="possible"}', "value": 1}]}]
    given = [{"series": name, "values": values} for name, values in series.items()]
    test = {"interval": f"{EVERY}s", "input_series": given, "promql_expr_test": asked}
    path = tmp_path / "asked.yaml"
    path.write_text(yaml.safe_dump({"rule_files": [], "evaluation_interval": "1m", "tests": [test]}))
    done = subprocess.run([promtool, "test", "rules", str(path)], capture_output=True, text=True, timeout=60)
    output = done.stdout + done.stderr
    assert "got:" in output, output
    got = output.split("got:", 1)[1]
    return [(dict(_LABEL.findall(labels)), float(value.rstrip(","))) for labels, value in _SAMPLE.findall(got)]

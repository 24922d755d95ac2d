"""Queries answered by promtool over series that a test writes down."""

from __future__ import annotations

import json
import subprocess


def promtool_says(promtool, path):
    result = subprocess.run([promtool, "test", "rules", str(path)], capture_output=True, text=True, timeout=60)
    return result.returncode, result.stdout + result.stderr


def check_rows(promtool, tmp_path, series, expression, expected):
    """Check with promtool whether the expression gives exactly the expected rows (labels → value)."""
    question = {
        "expr": expression,
        "eval_time": "5m",
        "exp_samples": [{"labels": labels, "value": value} for labels, value in expected.items()],
    }
    test = {
        "interval": "1m",
        "input_series": [{"series": series_name, "values": "1x5"} for series_name in series],
        "promql_expr_test": [question],
    }
    path = tmp_path / "question.json"
    path.write_text(json.dumps({"rule_files": [], "tests": [test]}))  # JSON is YAML
    return promtool_says(promtool, path)

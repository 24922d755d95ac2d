"""The generated rules with all their times divided by one number: an hour of a night becomes two minutes of a test.

Nothing else changes: the same alerts with the same expressions, thresholds, labels and texts.
"""

from __future__ import annotations

import re

import yaml

from alerts.registry import groups
from alerts.render import RULES, files
from alerts.rule import seconds
from exporter.model.text import Language

# A range needs two samples at the scrape interval of a second, also when the machine is late.
SHORTEST_RANGE = 6
_RANGE = re.compile(r"\[(\d+[smhd])\]")
_SUBQUERY = re.compile(r"\[(\d+[smhd]):(\d+[smhd])\]")
_OFFSET = re.compile(r"\boffset (\d+[smhd])\b")


def rules(tuning, pace, language=Language.ENGLISH):
    """Return the rule file ``pace`` times as fast."""
    tree = yaml.safe_load(files(groups(tuning), tuning, language)[RULES])
    for group in tree["groups"]:
        group["interval"] = "1s"
        for rule in group["rules"]:
            rule["expr"] = _RANGE.sub(lambda match: f"[{_at_pace(match[1], pace, SHORTEST_RANGE)}]", rule["expr"])
            rule["expr"] = _SUBQUERY.sub(lambda match: _subquery(*match.groups(), pace), rule["expr"])
            rule["expr"] = _OFFSET.sub(lambda match: f"offset {_at_pace(match[1], pace, 1)}", rule["expr"])
            for key in ("for", "keep_firing_for"):
                if key in rule:
                    rule[key] = _at_pace(rule[key], pace, 1)
    return yaml.safe_dump(tree, allow_unicode=True, sort_keys=False)


def _at_pace(duration, pace, min_seconds):
    return f"{max(min_seconds, round(seconds(duration) / pace))}s"


def _subquery(window, step, pace):
    """Return the range of a subquery with as many instants."""
    faster = max(1, round(seconds(step) / pace))
    return f"[{faster * seconds(window) // seconds(step)}s:{faster}s]"

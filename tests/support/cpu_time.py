"""Print the processor time that each test file costs: ``pytest -p tests.support.cpu_time``.

Counted are the process of the tests and the children that it has waited for, user and system time together.
"""

from __future__ import annotations

import resource
from collections import Counter

import pytest

SHOWN = 40


class _Clock:
    last = 0.0


def _used() -> float:
    usages = [
        resource.getrusage(children_or_self) for children_or_self in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    ]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def pytest_collection_finish():
    _Clock.last = _used()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport():
    report = yield
    now = _used()
    report.cpu_seconds, _Clock.last = now - _Clock.last, now
    return report


def pytest_terminal_summary(terminalreporter):
    by_file = Counter()
    for reports in terminalreporter.stats.values():
        for report in reports:
            by_file[getattr(report, "nodeid", "").partition("::")[0]] += getattr(report, "cpu_seconds", 0.0)
    terminalreporter.section(f"CPU time by file, of {sum(by_file.values()):.0f} s")
    for name, seconds in by_file.most_common(SHOWN):
        terminalreporter.write_line(f"{seconds:8.1f} s  {name}")

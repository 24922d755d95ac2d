"""The page beside NVIDIA's own programs; each difference, and why something was not compared, goes to the report."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from tests.bench.real_card import agreement, counters, smi
from tests.bench.real_card.agreement import Answers, Verdict
from tests.bench.real_card.cards import Seen
from tests.bench.real_card.daemon import Daemon, DaemonError, Page
from tests.bench.real_card.report import Report, table

ROUNDS = 3
_WORK_TOLERANCE = 0.10  # two windows of a second that do not begin together
_PATHS = 15.0  # seconds until the paths between all cards are known

Raws = dict[str, dict[int, counters.Raw]]


def word(agrees: bool | None) -> str:
    """Return it in a table."""
    return {True: "agrees", False: "**differs**", None: "neither has it, or withheld"}[agrees]


@dataclass(slots=True)
class Comparison:
    """One run's.  ``pages`` are all that were seen so far, and grow; ``index``: uuid → index of whole cards."""

    report: Report
    daemon: Daemon
    pages: list[Page]
    index: dict[str, str]

    def all(self, driver: Any, seen: Seen, before: Raws) -> None:
        """Compare everything that can be.  ``before``: the disputed counters at the beginning."""
        theirs: Answers = {}
        try:
            theirs, verdicts = self._rounds()
        except smi.ProgramError as error:
            self.report.notes.append(f"Not compared with nvidia-smi: {error}")
        else:
            self._judge(verdicts)
        self._paths()
        self._work()
        self._units(before, counters.look(driver), theirs, seen)

    def _rounds(self) -> tuple[Answers, list[Verdict]]:
        """Ask several times; a figure that agreed once agrees."""
        kept: dict[tuple[str, str], Verdict] = {}
        theirs: Answers = {}
        for turn in range(ROUNDS):
            around = [self.daemon.page()]
            theirs = smi.query(agreement.FIELDS)
            around.append(self.daemon.fresh())
            self.pages += around
            for uuid, card in self.index.items():
                for verdict in self._card(card, uuid, around, theirs):
                    known = kept.get((card, verdict.title))
                    if known is None or (known.agrees is False and verdict.agrees is not False):
                        kept[card, verdict.title] = verdict
            if turn and not any(verdict.agrees is False for verdict in kept.values()):
                break
        return theirs, list(kept.values())

    def _card(self, card: str, uuid: str, around: list[Page], theirs: Answers) -> list[Verdict]:
        if uuid not in theirs:
            lost = Verdict(card=card, title="uuid", ours=uuid, theirs="no such card", tolerance="none", agrees=False)
            return [lost]
        found = Verdict(card=card, title="uuid", ours=uuid, theirs=uuid, tolerance="none", agrees=True)
        return [
            found,
            *agreement.texts(card, uuid, around[-1], theirs[uuid]),
            *agreement.figures(card, uuid, around, self.pages, theirs[uuid]),
        ]

    def _judge(self, verdicts: list[Verdict]) -> None:
        self.report.differences += [
            f"card {one.card}: {one.title} is {one.ours} here, {one.theirs} in nvidia-smi (tolerance: {one.tolerance})"
            for one in verdicts
            if one.agrees is False
        ]
        rows = [(one.card, one.title, one.ours, one.theirs, one.tolerance, word(one.agrees)) for one in verdicts]
        told = sum(one.agrees is not None for one in verdicts)
        self.report.section(
            "Against nvidia-smi",
            f"{told} figures compared, {len(verdicts) - told} that neither has or that are withheld here.",
            table(("card", "figure", "here", "nvidia-smi", "tolerance", ""), rows),
        )

    def _paths(self) -> None:
        if len(self.index) < 2:
            return
        try:
            theirs = smi.paths()
        except smi.ProgramError as error:
            self.report.notes.append(f"Paths not compared: {error}")
            return
        pairs = {(one, other): path for (one, other), path in theirs.items() if one < other}
        ours = {
            tuple(sorted((int(self.index[labels["uuid"]]), int(self.index[labels["peer"]])))): labels["path"]
            for labels, _ in self._page_with_paths(len(pairs)).all("gpu_peer_path_info")
        }
        rows = []
        for one, other in sorted(ours.keys() | pairs.keys()):
            here, there = ours.get((one, other), "absent"), pairs.get((one, other), "absent")
            rows.append((f"{one} and {other}", here, there, word(here == there)))
            if here != there:
                self.report.differences.append(
                    f"the path between cards {one} and {other} is {here} here, {there} in nvidia-smi topo -m"
                )
        self.report.section("Paths", table(("cards", "here", "nvidia-smi topo -m", ""), rows))

    def _page_with_paths(self, number: int) -> Page:
        """Wait for the daemon to have asked for all pairs, which it does beside its cycles."""
        with suppress(DaemonError):
            return self.daemon.until(lambda page: len(page.all("gpu_peer_path_info")) >= number, "paths", _PATHS)
        return self.pages[-1]

    def _work(self) -> None:
        """Compare how much of a card worked, where both can say it."""
        if not any(self.pages[-1].all(metric) for metric in smi.GPM.values()):
            self.report.notes.append("These cards show no work signals (GPM: Hopper and newer; see Absent).")
            return
        around = [self.daemon.page()]
        try:
            tool, theirs = smi.work()
        except smi.ProgramError as error:
            self.report.notes.append(f"Work signals not compared: {error}")
            return
        around.append(self.daemon.fresh())
        self.pages += around
        rows = []
        for uuid, card in self.index.items():
            for metric, value in theirs.get(int(card), {}).items():
                seen = [found for page in around if (found := page.get(metric, uuid=uuid)) is not None]
                if seen:
                    agrees = min(seen) - _WORK_TOLERANCE <= value <= max(seen) + _WORK_TOLERANCE
                    here = f"{min(seen):.3f} to {max(seen):.3f}"
                    rows.append((card, metric, here, f"{value:.3f}", word(agrees)))
                    if not agrees:
                        self.report.differences.append(
                            f"card {card}: {metric} is {here} here, {value:.3f} in {tool} (tolerance: {_WORK_TOLERANCE})"
                        )
        self.report.section(f"Work, against {tool}", table(("card", "figure", "here", tool, ""), rows))

    def _units(self, before: Raws, after: Raws, theirs: Answers, seen: Seen) -> None:
        """Show the disputed counters raw, and what the daemon made of them."""
        page = self.pages[-1]
        rows, said = [], []
        for uuid, card in self.index.items():
            raw = before.get(uuid, {}), after.get(uuid, {})
            rows += [(card, *row) for row in counters.rows(*raw, seen.driver.driver_version, theirs.get(uuid, {}))]
            shown = sorted(labels["reason"] for labels, _ in page.all("gpu_clock_event_seconds_total", uuid=uuid))
            missing = page.all("gpu_signal_missing_info", uuid=uuid, signal="clock_event_time")
            rest = "".join(f", the rest is {labels['reason']}" for labels, _ in missing)
            said.append(f"card {card} {', '.join(shown) or 'none'}{rest}")
        heads = (
            "card",
            "field",
            "if the id means it",
            "",
            "number",
            "steps a second",
            "nvidia-smi µs",
            "steps in a µs",
        )
        self.report.section(
            "Time that clocks were held down",
            f"On the page: {'; '.join(said)}.  In a microsecond of nvidia-smi's there are 1000 steps of a counter in "
            "nanoseconds, 1 of one in microseconds; while its reason is active, a counter makes 1e9 or 1e6 a second.",
            table(heads, rows),
        )

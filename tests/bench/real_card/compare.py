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


def agreement_text(agrees: bool | None) -> str:
    """Return the result in words."""
    return {True: "agrees", False: "**differs**", None: "neither has it, or withheld"}[agrees]


@dataclass(slots=True)
class Comparison:
    """One run's.  ``pages`` are all that were seen so far, and grow; ``index``: uuid → index of whole cards."""

    report: Report
    daemon: Daemon
    pages: list[Page]
    index: dict[str, str]

    def all(self, driver: Any, reading: Seen, before: Raws) -> None:
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
        self._units(before, counters.look(driver), theirs, reading)

    def _rounds(self) -> tuple[Answers, list[Verdict]]:
        """Compare several times; a figure that agreed once agrees."""
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
        uuid_verdict = Verdict(card=card, title="uuid", ours=uuid, theirs=uuid, tolerance="none", agrees=True)
        return [
            uuid_verdict,
            *agreement.texts(card, uuid, around[-1], theirs[uuid]),
            *agreement.figures(card, uuid, around, self.pages, theirs[uuid]),
        ]

    def _judge(self, verdicts: list[Verdict]) -> None:
        self.report.differences += [
            f"card {verdict.card}: {verdict.title} is {verdict.ours} here, {verdict.theirs} in nvidia-smi (tolerance: {verdict.tolerance})"
            for verdict in verdicts
            if verdict.agrees is False
        ]
        rows = [
            (
                verdict.card,
                verdict.title,
                verdict.ours,
                verdict.theirs,
                verdict.tolerance,
                agreement_text(verdict.agrees),
            )
            for verdict in verdicts
        ]
        compared = sum(verdict.agrees is not None for verdict in verdicts)
        self.report.section(
            "Against nvidia-smi",
            f"{compared} figures compared, {len(verdicts) - compared} that neither has or that are withheld here.",
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
        pairs = {(gpu, other): path for (gpu, other), path in theirs.items() if gpu < other}
        ours = {
            tuple(sorted((int(self.index[labels["uuid"]]), int(self.index[labels["peer"]])))): labels["path"]
            for labels, _ in self._page_with_paths(len(pairs)).all("gpu_peer_path_info")
        }
        rows = []
        for gpu, other in sorted(ours.keys() | pairs.keys()):
            ours_shown, there = ours.get((gpu, other), "absent"), pairs.get((gpu, other), "absent")
            rows.append((f"{gpu} and {other}", ours_shown, there, agreement_text(ours_shown == there)))
            if ours_shown != there:
                self.report.differences.append(
                    f"the path between cards {gpu} and {other} is {ours_shown} here, {there} in nvidia-smi topo -m"
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
                shown = [value_shown for page in around if (value_shown := page.get(metric, uuid=uuid)) is not None]
                if shown:
                    agrees = min(shown) - _WORK_TOLERANCE <= value <= max(shown) + _WORK_TOLERANCE
                    ours_shown = f"{min(shown):.3f} to {max(shown):.3f}"
                    rows.append((card, metric, ours_shown, f"{value:.3f}", agreement_text(agrees)))
                    if not agrees:
                        self.report.differences.append(
                            f"card {card}: {metric} is {ours_shown} here, {value:.3f} in {tool} (tolerance: {_WORK_TOLERANCE})"
                        )
        self.report.section(f"Work, against {tool}", table(("card", "figure", "here", tool, ""), rows))

    def _units(self, before: Raws, after: Raws, theirs: Answers, reading: Seen) -> None:
        """Show the disputed counters raw, and what the daemon made of them."""
        page = self.pages[-1]
        rows, descriptions = [], []
        for uuid, card in self.index.items():
            raw = before.get(uuid, {}), after.get(uuid, {})
            rows += [(card, *row) for row in counters.rows(*raw, reading.driver.driver_version, theirs.get(uuid, {}))]
            shown = sorted(labels["reason"] for labels, _ in page.all("gpu_clock_event_seconds_total", uuid=uuid))
            missing = page.all("gpu_signal_missing_info", uuid=uuid, signal="clock_event_time")
            rest = "".join(f", the rest is {labels['reason']}" for labels, _ in missing)
            descriptions.append(f"card {card} {', '.join(shown) or 'none'}{rest}")
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
            f"On the page: {'; '.join(descriptions)}.  In a microsecond of nvidia-smi's there are 1000 steps of a counter in "
            "nanoseconds, 1 of one in microseconds; while its reason is active, a counter makes 1e9 or 1e6 a second.",
            table(heads, rows),
        )

"""``shardwatch alerts``: write the rule files and the Alertmanager configuration, or compare them with the files in use.

Exit codes: 0 written or equal, 1 a file differs (with ``--check`` or ``--diff``) or cannot be written, 2 invalid usage,
or a rejected thresholds or receivers file, or (with ``--diff``) a file that cannot be compared.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

from alerts import alertmanager, differences
from alerts.alertmanager.plan import NotificationPlan
from alerts.registry import groups
from alerts.render import RESOURCES, RULES, files
from alerts.tuning import Tuning, address, load
from exporter.__main__ import drop_inspect_mode
from exporter.config.output_files import read_text, write_text
from exporter.config.parsers import Invalid
from exporter.errors import SettingsError, ShardwatchError
from exporter.model.text import Language

OK, FAILED, BAD_INPUT = 0, 1, 2
LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
_REMOVED = re.compile(r"  - alert (\w+)")
GENERATED = Path(__file__).parent / "generated"


def generated(
    tuning: Tuning, languages: Sequence[Language], plan: NotificationPlan | None = None
) -> Mapping[Path, str]:
    """Return every file's content by its path below the output folder, one folder a language."""
    found = groups(tuning)
    rules = {
        Path(language.value, name): text
        for language in languages
        for name, text in files(found, tuning, language).items()
    }
    off = {name for name, change in tuning.rules.items() if change.max_severity or not change.enabled}
    return {**rules, **alertmanager.files(found, plan or alertmanager.load(alertmanager.DEFAULT), languages, off)}


def differing(wanted: Mapping[Path, str], output: Path) -> Iterator[tuple[Path, str]]:
    """Return the files that are not what the code makes, and how: missing, different, or no longer generated."""
    for path, text in wanted.items():
        place = output / path
        try:
            known_text = read_text(place)
        except (OSError, UnicodeDecodeError):
            known_text = ""
        if known_text is None:
            yield path, "is missing"
        elif known_text != text:
            yield path, "differs from the code"
    known = {output / path for path in wanted}
    for folder in sorted({(output / path).parent for path in wanted}):
        for place in sorted(folder.glob("*.yaml")):
            if place not in known:
                yield place.relative_to(output), "is no longer generated"


def command(argv: Sequence[str]) -> int:
    """Run ``shardwatch alerts``; return the exit code.  ``--output`` is required: a package has no directory."""
    return main(argv, "shardwatch alerts", None)


def main(argv: Sequence[str] | None = None, prog: str = "python -m alerts", output: Path | None = GENERATED) -> int:
    """Write the files, or compare them; ``output`` is where, None if it must be given.  Return the exit code."""
    arguments = parser(prog, output).parse_args(argv)
    try:
        tuning = load(arguments.thresholds) if arguments.thresholds else Tuning()
        tuning = replace(
            tuning,
            runbook=arguments.runbook_url or tuning.runbook,
            dashboards=(arguments.base_url or tuning.dashboards).rstrip("/"),
        )
        plan = alertmanager.load(arguments.receivers)
    except SettingsError as error:
        print(f"{prog}: {error}", file=sys.stderr)
        return BAD_INPUT
    if (watchdog := tuning.rules.get("Watchdog")) and not watchdog.enabled:
        print(f"{prog}: Watchdog is switched off: a failure of the notification path goes unnoticed", file=sys.stderr)
    try:
        wanted = generated(tuning, _languages(arguments), plan)
        if arguments.diff:
            return _report(wanted, arguments.output, tuning)
    except ShardwatchError as error:
        print(f"{prog}: {error}", file=sys.stderr)
        return BAD_INPUT
    if arguments.check:
        return _check(wanted, arguments.output, prog)
    try:
        _write(wanted, arguments.output)
    except OSError as error:
        print(f"{prog}: cannot write {error.filename}: {error.strerror}", file=sys.stderr)
        return FAILED
    if output is None:
        for hint in _link_hints(tuning):
            print(f"{prog}: {hint}", file=sys.stderr)
    return OK


def _languages(arguments: argparse.Namespace) -> list[Language]:
    """Return the language that was asked for; without one all, or with ``--diff`` those that are in use."""
    if arguments.language:
        return [Language(arguments.language)]
    used = [language for language in Language if arguments.diff and (arguments.output / language.value).is_dir()]
    return used or list(Language)


def _report(wanted: Mapping[Path, str], output: Path, tuning: Tuning) -> int:
    """Print what writing the files would change; return 1 if anything does."""
    changes: dict[str, list[str]] = {}
    for path, text in wanted.items():
        old = differences.read(output / path)
        if path.name in RESOURCES and (output / path.with_name(RULES)).is_file():
            continue  # holds the same rules
        if old is None:
            changes[str(output / path)] = ["+ new file"]
        elif path.name in {RULES, *RESOURCES}:
            changes[str(output / path)] = differences.rules(old, text, str(output / path))
        elif path.name == alertmanager.CONFIGURATION:
            changes[str(output / path)] = differences.alertmanager(old, text, str(output / path))
        elif old != text:
            changes[str(output / path)] = differences.text(old, text)
    for path, how in differing(wanted, output):
        if path not in wanted:
            changes[str(output / path)] = [f"- {how}"]
    for line in differences.lines_about(changes):
        removed = _REMOVED.match(line)
        change = tuning.rules.get(removed[1]) if removed else None
        print(line if change is None or change.enabled else f"{line}: switched off: {change.reason}")
    return FAILED if any(changes.values()) else OK


def _write(wanted: Mapping[Path, str], output: Path) -> None:
    for path, text in wanted.items():
        write_text(output, path, text)


def _link_hints(tuning: Tuning) -> Iterator[str]:
    """Yield what to add when links of notifications work on this machine only, or not at all."""
    if urlsplit(tuning.dashboards).hostname in LOOPBACK:
        yield f"links to dashboards lead to {tuning.dashboards}; --base-url URL sets Grafana's address"
    if not urlsplit(tuning.runbook).scheme:
        yield "notifications have no links to the runbook; --runbook-url URL sets its address"


def _address(text: str) -> str:
    try:
        return address(text)
    except Invalid as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _check(wanted: Mapping[Path, str], output: Path, prog: str) -> int:
    wrong = list(differing(wanted, output))
    for path, how in wrong:
        print(f"{prog}: {output / path} {how}; run {prog} without --check", file=sys.stderr)
    return FAILED if wrong else OK


def parser(prog: str, output: Path | None) -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(
        prog=prog, description="Write the alert rules and the Alertmanager configuration."
    )
    where = "where to write (default: %(default)s)" if output else "where to write"
    parser.add_argument("--output", type=Path, default=output, required=output is None, metavar="DIR", help=where)
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if a file differs")
    parser.add_argument(
        "--diff",
        action="store_true",
        help="write nothing; print what would change about the files that are there, and exit with 1 if anything would",
    )
    parser.add_argument(
        "--language",
        choices=[language.value for language in Language],
        help="only this language (default: each in a directory of its own)",
    )
    parser.add_argument("--thresholds", metavar="FILE", help="YAML with thresholds, model classes and links")
    parser.add_argument(
        "--base-url",
        type=_address,
        metavar="URL",
        help="URL of Grafana, for the links to dashboards (overrides links.dashboards of the thresholds)",
    )
    parser.add_argument(
        "--runbook-url",
        type=_address,
        metavar="URL",
        help="URL of runbook.md (overrides links.runbook of the thresholds)",
    )
    parser.add_argument(
        "--receivers",
        default=alertmanager.DEFAULT,
        metavar="FILE",
        help="YAML that says who is notified, and how (default: the receivers.yaml of the package)",
    )
    return parser


if __name__ == "__main__":
    drop_inspect_mode()
    sys.exit(main())

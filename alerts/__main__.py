"""``shardwatch alerts``: write the rule files and the Alertmanager configuration, or check them against the code.

Exit codes: 0 written or equal, 1 a file differs (with ``--check``) or cannot be written, 2 invalid usage, or a rejected
thresholds or receivers file.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

from alerts import alertmanager
from alerts.alertmanager.plan import NotificationPlan
from alerts.registry import groups
from alerts.render import files
from alerts.tuning import Tuning, load
from exporter.config.output_files import write_text
from exporter.errors import SettingsError, ShardwatchError
from exporter.model.text import Language

OK, FAILED, BAD_INPUT = 0, 1, 2
LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
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
        if not place.is_file():
            yield path, "is missing"
        elif place.read_text(encoding="utf-8") != text:
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
    languages = [Language(arguments.language)] if arguments.language else list(Language)
    try:
        wanted = generated(tuning, languages, plan)
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


def _write(wanted: Mapping[Path, str], output: Path) -> None:
    for path, text in wanted.items():
        write_text(output / path, text)


def _link_hints(tuning: Tuning) -> Iterator[str]:
    """Yield what to add when links of notifications work on this machine only, or not at all."""
    if urlsplit(tuning.dashboards).hostname in LOOPBACK:
        yield f"links to dashboards lead to {tuning.dashboards}; --base-url URL sets Grafana's address"
    if not urlsplit(tuning.runbook).scheme:
        yield "notifications have no links to the runbook; --runbook-url URL sets its address"


def _address(text: str) -> str:
    parts = urlsplit(text)
    if parts.scheme not in {"http", "https"} or not parts.hostname or any(item in text for item in " \"'{#"):
        raise argparse.ArgumentTypeError("must be a URL such as https://grafana.example.org")
    return text


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
    sys.exit(main())

"""``python -m alerts``: write the rule files and the Alertmanager configuration, or say which differ from the code.

Exit codes: 0 written or equal, 1 a file differs (with ``--check``), 2 bad usage, or a refused file of thresholds or receivers.
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
from alerts.text import Language
from alerts.tuning import Tuning, load
from exporter.errors import SettingsError

OK, DIFFERS, BAD_INPUT = 0, 1, 2
GENERATED = Path(__file__).parent / "generated"


def generated(
    tuning: Tuning, languages: Sequence[Language], plan: NotificationPlan | None = None
) -> Mapping[Path, str]:
    """Give every file's content by its path below the output folder, one folder a language."""
    found = groups(tuning)
    rules = {
        Path(language.value, name): text
        for language in languages
        for name, text in files(found, tuning, language).items()
    }
    return {**rules, **alertmanager.files(found, plan or alertmanager.load(alertmanager.DEFAULT), languages)}


def differing(wanted: Mapping[Path, str], output: Path) -> Iterator[tuple[Path, str]]:
    """Give the files that are not what the code makes, and how: missing, differs, or of no use any more."""
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
                yield place.relative_to(output), "is made by nothing any more"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line."""
    arguments = _parser().parse_args(argv)
    try:
        tuning = load(arguments.thresholds) if arguments.thresholds else Tuning()
        tuning = replace(tuning, runbook=arguments.runbook_url or tuning.runbook)
        plan = alertmanager.load(arguments.receivers)
    except SettingsError as error:
        print(error, file=sys.stderr)
        return BAD_INPUT
    languages = [Language(arguments.language)] if arguments.language else list(Language)
    wanted = generated(tuning, languages, plan)
    if arguments.check:
        return _check(wanted, arguments.output)
    for path, text in wanted.items():
        place = arguments.output / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text, encoding="utf-8")
    return OK


def _address(text: str) -> str:
    parts = urlsplit(text)
    if parts.scheme not in {"http", "https"} or not parts.hostname or any(one in text for one in " \"'{#"):
        raise argparse.ArgumentTypeError(
            "must be an address such as https://git.example.org/shardwatch/alerts/runbook.md"
        )
    return text


def _check(wanted: Mapping[Path, str], output: Path) -> int:
    wrong = list(differing(wanted, output))
    for path, how in wrong:
        print(f"{output / path} {how}; run python -m alerts", file=sys.stderr)
    return DIFFERS if wrong else OK


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m alerts", description="Write the alert rules and the Alertmanager configuration."
    )
    parser.add_argument(
        "--output", type=Path, default=GENERATED, metavar="DIR", help="where to (default: %(default)s)"
    )
    parser.add_argument(
        "--check", action="store_true", help="write nothing; exit 1 when a file differs from the code"
    )
    parser.add_argument(
        "--language",
        choices=[language.value for language in Language],
        help="only this language (default: each in a folder of its own)",
    )
    parser.add_argument("--thresholds", metavar="FILE", help="YAML with thresholds, classes of models and links")
    parser.add_argument(
        "--runbook-url",
        type=_address,
        metavar="URL",
        help="where people find runbook.md (wins over links.runbook of the thresholds): without an address messages "
        "have no link to it",
    )
    parser.add_argument(
        "--receivers",
        default=alertmanager.DEFAULT,
        metavar="FILE",
        help="YAML that says who is told, and how (default: %(default)s)",
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())

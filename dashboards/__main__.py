"""Write the Grafana dashboards and their provisioning: ``shardwatch dashboards --output DIR [--check]``.

The same code gives the same files, byte for byte; ``--check`` writes nothing and fails where they differ; ``--diff``
prints what would change. Exit codes: 0 written or equal, 1 different, invalid or not writable, 2 invalid usage, a
rejected thresholds file, a file that cannot be compared, or the extra ``dashboards`` is needed and not installed.  The command of the installed program does not need it for the default
dashboards, which are part of the package.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Sequence

from alerts.differences import UnreadableFileError, lines_about
from alerts.tuning import load
from dashboards import active_tuning, differences
from dashboards.errors import DashboardError
from dashboards.trace_links import JAEGER_URL, with_jaeger_url
from exporter.__main__ import drop_inspect_mode
from exporter.config.output_files import read_text, remove, write_text
from exporter.errors import SettingsError
from exporter.model.text import Language

GENERATED = os.path.join(os.path.dirname(os.path.abspath(__file__)), "generated")


def files(language: Language, traces: str = JAEGER_URL) -> dict[str, str]:
    """Return every file of one language: its path relative to the language's directory, and its content.

    ``traces`` is the address of Jaeger; an empty string leaves out the links to it.
    """
    from dashboards import provisioning  # noqa: PLC0415 - an invalid dashboard is an error message, not a traceback
    from dashboards.definitions import DASHBOARDS  # noqa: PLC0415

    dashboards = {
        f"{dashboard.uid.value}.json": with_jaeger_url(dashboard.render(language), traces) for dashboard in DASHBOARDS
    }
    found = {name: json.dumps(data, ensure_ascii=False, indent=1) + "\n" for name, data in dashboards.items()}
    found["provisioning/datasources/shardwatch.yaml"] = provisioning.data_source()
    found["provisioning/dashboards/shardwatch.yaml"] = provisioning.provider(language)
    found["provisioning/grafana.env"] = provisioning.environment()
    found["kubernetes/shardwatch-dashboards.yaml"] = provisioning.config_maps(dashboards, language)
    found["kubernetes/kustomization.yaml"] = provisioning.kustomization("shardwatch-dashboards.yaml")
    return found


def command(argv: Sequence[str]) -> int:
    """Run ``shardwatch dashboards``; return the exit code.  ``--output`` is required: a package has no directory."""
    return main(argv, "shardwatch dashboards", None)


def main(
    argv: Sequence[str] | None = None, prog: str = "python -m dashboards", output: str | None = GENERATED
) -> int:
    """Write the files, or compare them; return the exit code.  ``output`` is the default directory, if there is one."""
    arguments = parser(prog, output).parse_args(argv)
    try:
        if arguments.thresholds:
            active_tuning.set_(load(arguments.thresholds))  # before the first dashboard is imported
    except SettingsError as error:
        print(f"{prog}: {error}", file=sys.stderr)
        return 2
    except DashboardError as error:
        print(f"{prog}: {error}", file=sys.stderr)
        return 1
    is_default = not arguments.thresholds and arguments.traces == JAEGER_URL
    return _build(arguments, prog, shipped if output is None and is_default else files)


def shipped(language: Language, _traces: str = JAEGER_URL) -> dict[str, str]:
    """Return what ``files`` returns by default, from the package's generated files: without grafanalib."""
    root = os.path.join(GENERATED, language.value)
    paths = [os.path.join(place, name) for place, _, names in os.walk(root) for name in names]
    return {os.path.relpath(path, root): _read(path) or "" for path in sorted(paths)}


def parser(prog: str, output: str | None) -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(prog=prog, description="Write the Grafana dashboards and their provisioning.")
    where = "where to write (default: beside the code)" if output else "where to write"
    parser.add_argument("--output", metavar="DIR", default=output, required=output is None, help=where)
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if a file differs")
    parser.add_argument(
        "--diff",
        action="store_true",
        help="write nothing; print what would change about the files that are there, and exit with 1 if anything would",
    )
    parser.add_argument(
        "--language",
        choices=[language.value for language in Language],
        action="append",
        help="only this language (default: all)",
    )
    parser.add_argument(
        "--thresholds",
        metavar="FILE",
        help="the YAML that the alerts were generated with, for the same colours and SLOs",
    )
    parser.add_argument(
        "--traces",
        metavar="URL",
        default=JAEGER_URL,
        help="Jaeger, for links from replicas to traces; '' for none (%(default)s)",
    )
    return parser


def _build(arguments: argparse.Namespace, prog: str, make: Callable[[Language, str], dict[str, str]]) -> int:
    languages = _languages(arguments)
    try:
        wanted = {
            os.path.join(language.value, path): text
            for language in languages
            for path, text in make(language, arguments.traces).items()
        }
    except DashboardError as error:
        print(f"{prog}: {error}", file=sys.stderr)
        return 1
    except ModuleNotFoundError as error:
        if str(error.name).partition(".")[0] != "grafanalib":
            raise
        hint = "install the extra: pip install 'shardwatch[dashboards]'"
        print(f"{prog}: --thresholds and --traces need grafanalib; {hint}", file=sys.stderr)
        return 2
    folders = [os.path.join(arguments.output, language.value) for language in languages]
    stale = _stale_files(folders, {os.path.join(arguments.output, path) for path in wanted})
    if arguments.check:
        return _compare(arguments.output, wanted, stale, prog)
    if arguments.diff:
        return _report(arguments.output, wanted, stale, prog)
    try:
        for path in stale:
            remove(arguments.output, os.path.relpath(path, arguments.output))
        for path, text in wanted.items():
            write_text(arguments.output, path, text)
    except OSError as error:
        print(f"{prog}: cannot write {error.filename}: {error.strerror}", file=sys.stderr)
        return 1
    print(f"{len(wanted)} files in {arguments.output}")
    return 0


def _languages(arguments: argparse.Namespace) -> list[Language]:
    """Return the languages that were asked for; without one all, or with ``--diff`` those that are in use."""
    if arguments.language:
        return [Language(code) for code in arguments.language]
    directories = {language: os.path.join(arguments.output, language.value) for language in Language}
    used = [language for language, path in directories.items() if arguments.diff and os.path.isdir(path)]
    return used or list(Language)


def _report(folder: str, wanted: dict[str, str], stale: Sequence[str], prog: str) -> int:
    """Print what writing the files would change; return 1 if anything does, 2 if a file cannot be compared."""
    try:
        changes = {
            place: differences.of_file(place, text)
            for place, text in ((os.path.join(folder, path), text) for path, text in wanted.items())
        }
    except UnreadableFileError as error:
        print(f"{prog}: {error}", file=sys.stderr)
        return 2
    for line in lines_about(changes | {path: ["- belongs to no dashboard"] for path in stale}):
        print(line)
    return 1 if stale or any(changes.values()) else 0


def _stale_files(folders: Sequence[str], wanted: set[str]) -> list[str]:
    """Return the paths of generated files that no dashboard produces any more."""
    return sorted(
        path
        for folder in folders
        for place, _, names in os.walk(folder)
        for name in names
        if (path := os.path.join(place, name)) not in wanted and name.endswith((".json", ".yaml", ".env"))
    )


def _compare(folder: str, wanted: dict[str, str], stale: Sequence[str], prog: str) -> int:
    again = "make generate" if prog.startswith("python") else f"{prog} without --check"
    different = [path for path, text in wanted.items() if _read(os.path.join(folder, path)) != text]
    for path in different:
        print(f"{prog}: {os.path.join(folder, path)} differs from the code; run {again}", file=sys.stderr)
    for path in stale:
        print(f"{prog}: {path} belongs to no dashboard; run {again}", file=sys.stderr)
    return 1 if different or stale else 0


def _read(path: str) -> str | None:
    try:
        return read_text(path)
    except (OSError, UnicodeDecodeError):
        return None


if __name__ == "__main__":
    drop_inspect_mode()
    sys.exit(main())

"""Draw the generated dashboards with live data, without Grafana: ``python -m dashboards.preview``.

Without ``--store``, daemons on simulated nodes run for some minutes, and only the pictures are kept. With it the
recording is kept too, and the next call draws it again at once.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import sys
import tempfile
from collections.abc import Iterator, Sequence

from dashboards.preview import ask, drawing, plan, recording
from dashboards.preview.programs import PreviewError, program
from exporter.model.text import Language

CACHE = os.path.join(recording.ROOT, ".cache", "preview")


def main(argv: Sequence[str] | None = None) -> int:
    """Record and draw; return the exit code: 0, 1 with a message, 130 when interrupted."""
    arguments = _arguments(argv)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # what was started ends with its block
    try:
        for name in ("prometheus", "chromium", "node", "npm"):
            program(name)
        _chosen(arguments.var)  # before minutes of recording
        with _folder(arguments.store) as folder:
            return _draw(arguments, _recorded(arguments, folder))
    except PreviewError as error:
        print(f"preview: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m dashboards.preview", description=__doc__)
    parser.add_argument(
        "--scenario",
        metavar="NAME",
        action="append",
        help="what runs, see shardwatch demo --list; repeat for more nodes (default healthy and heat)",
    )
    parser.add_argument("--minutes", type=float, default=6.0, help="how long it runs (default 6)")
    parser.add_argument(
        "--fault-at", type=float, default=2.5, metavar="MINUTES", help="when faults begin (default 2.5)"
    )
    parser.add_argument(
        "--dead",
        metavar="SCENARIO",
        action="append",
        default=[],
        help=f"end its daemons {recording.DEAD_SECONDS:.0f} s before the end, to see dashboards without an exporter",
    )
    parser.add_argument("--store", metavar="DIR", help="keep the recording there, or draw the one that is there")
    parser.add_argument("--dashboard", metavar="UID", action="append", help="only these dashboards (default: all)")
    parser.add_argument(
        "--only",
        metavar="SCENARIO",
        action="append",
        help="pictures of these scenarios alone; 'fleet' is all nodes together (default: every scenario, and the fleet)",
    )
    parser.add_argument("--var", metavar="NAME=VALUE", action="append", default=[], help="choose a variable's value")
    parser.add_argument("--language", choices=[language.value for language in Language], default="en")
    parser.add_argument("--theme", choices=("dark", "light"), default="dark")
    parser.add_argument("--width", type=int, default=1600, help="pixels (default 1600)")
    parser.add_argument("--lines", type=int, help="cut the picture below so many grid lines")
    parser.add_argument("--unfold", action="store_true", help="open collapsed rows")
    parser.add_argument("--output", metavar="DIR", default=os.path.join(CACHE, "pictures"))
    return parser.parse_args(argv)  # fmt: skip


@contextlib.contextmanager
def _folder(kept: str | None) -> Iterator[str]:
    if kept is not None:
        yield os.path.abspath(kept)
        return
    with tempfile.TemporaryDirectory(prefix="preview-") as folder:
        yield folder


def _recorded(arguments: argparse.Namespace, folder: str) -> recording.NodeRecording:
    found = recording.load(folder)
    if found is not None:
        return found
    return recording.record(
        folder, arguments.scenario or ["healthy", "heat"], seconds=arguments.minutes * 60,
        fault_at=arguments.fault_at * 60, language=Language(arguments.language), dead=arguments.dead,
    )  # fmt: skip


def _chosen(given: Sequence[str]) -> dict[str, str]:
    for item in given:
        if not item.partition("=")[0] or "=" not in item:
            raise PreviewError(f"--var {item}: write NAME=VALUE, such as replica=chat")
    return dict(item.split("=", 1) for item in given)


def _draw(arguments: argparse.Namespace, recorded: recording.NodeRecording) -> int:
    built = drawing.bundle(CACHE)
    window = plan.TimeRange(start=recorded.start, end=recorded.end - recorded.scrape, scrape=recorded.scrape)
    known = list(dict.fromkeys(node.scenario for node in recorded.nodes))
    subjects = arguments.only or [*known, *(["fleet"] if len(recorded.nodes) > 1 else [])]
    chosen = _chosen(arguments.var)
    with recording.serving(recorded) as prometheus, drawing.serving(built) as (page, url):
        for subject in subjects:
            nodes = [node.instance for node in recorded.nodes if subject in {"fleet", node.scenario}]
            if not nodes:
                raise PreviewError(f"{subject} is not in this recording; there are {', '.join(known)} and fleet")
            for uid in arguments.dashboard or plan.uids(arguments.language):
                dashboard = plan.load(uid, arguments.language)
                whole = subject == "fleet" and plan.takes_all(dashboard, "instance")
                only = {} if whole else {"instance": nodes[:1] if subject == "fleet" else nodes}
                made = plan.plan(
                    dashboard, window, only | {name: [value] for name, value in chosen.items()}, width=arguments.width,
                    unfold=arguments.unfold,
                )  # fmt: skip
                given = ask.answers(ask.Client(url=prometheus), made)
                for problem in ask.problems(made, given):
                    print(f"preview: {problem}", file=sys.stderr)
                target = os.path.join(
                    arguments.output, f"{subject}-{uid.removeprefix('shardwatch-')}-{arguments.language}.png"
                )
                shown = drawing.describe(
                    made, given, language=arguments.language, theme=arguments.theme, subtitle=subject
                )
                height = min(made.height, (arguments.lines or 10**6) * (plan.CELL + plan.GAP))
                drawing.picture(page, url, shown, target, height=height)
                print(target, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""``python -m compose.fleet serve``: pages of many nodes; ``measure``: what they cost a real Prometheus."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from compose.fleet import measure
from compose.fleet.nodes import Nodes, Originals
from compose.native import ending
from compose.native.errors import StackError


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; give the exit code."""
    arguments = _parser().parse_args(argv)
    ending.heed("ending the fleet")
    try:
        code: int = arguments.run(arguments)
    except StackError as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 0
    return code


def _serve(arguments: argparse.Namespace) -> int:
    with Nodes(Originals(arguments.url), arguments.nodes, port=arguments.port) as nodes:
        print(f"serving http://127.0.0.1:{nodes.port}/node/0/metrics to node {arguments.nodes - 1}", flush=True)
        while True:
            time.sleep(1.0)  # never one long wait: a signal may come just before it, and would be lost in it


def _measure(arguments: argparse.Namespace) -> int:
    for nodes in arguments.nodes:
        with tempfile.TemporaryDirectory(prefix="shardwatch-fleet-") as name:
            _measure_one(arguments, nodes, Path(name))
    return 0


def _measure_one(arguments: argparse.Namespace, nodes: int, folder: Path) -> None:
    rules, interval = not arguments.no_rules, arguments.interval
    with measure.fleet(folder, nodes, interval=interval, rules=rules, victoria=arguments.victoria) as running_fleet:
        cost = measure.measure(
            running_fleet, nodes, interval=interval, rules=rules, warm_up=arguments.warm_up, seconds=arguments.seconds
        )
        print(measure.as_json(cost), flush=True)
        if arguments.stored:
            print(measure.stored(running_fleet), flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m compose.fleet", description="Simulate many nodes on loopback.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    serve = commands.add_parser("serve", help="answer as many nodes, from the pages of a few daemons")
    serve.add_argument("--nodes", type=int, required=True, metavar="NUMBER")
    serve.add_argument("--port", type=int, default=0, help="(default: any free one)")
    serve.add_argument("url", nargs="+", metavar="URL", help="metrics page of a daemon")
    serve.set_defaults(run=_serve)
    run = commands.add_parser("measure", help="let Prometheus scrape them, and print what that costs as JSON lines")
    run.add_argument("--nodes", type=int, nargs="+", default=[50, 100, 200], metavar="NUMBER")
    run.add_argument("--interval", default="15s", help="between scrapes (default: %(default)s)")
    run.add_argument("--warm-up", type=float, default=60.0, metavar="SECONDS", help="(default: %(default)s)")
    run.add_argument("--seconds", type=float, default=120.0, help="of the measurement (default: %(default)s)")
    run.add_argument("--no-rules", action="store_true", help="scrape only")
    run.add_argument("--victoria", action="store_true", help="send everything on to VictoriaMetrics")
    run.add_argument("--stored", action="store_true", help="also say what it needs on disk")
    run.set_defaults(run=_measure)
    return parser


if __name__ == "__main__":
    sys.exit(main())

"""``python -m compose.native``: start the stack, say where it is, end it on Ctrl-C.

Exit codes: 0 ended by Ctrl-C, SIGTERM or a closed terminal, 1 a server failed, 2 something must be put right first.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from compose.native import ending
from compose.native.errors import StackError
from compose.native.stack import Stack, StackSettings, problems, stack

OK, FAILED, BAD_USAGE = 0, 1, 2


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; give the exit code."""
    arguments = _parser().parse_args(argv)
    ending.heed("ending the stack")
    try:
        return _run(_plan(arguments), arguments.data)
    except KeyboardInterrupt:
        return OK
    except StackError as error:
        print(error, file=sys.stderr)
        return FAILED


def _run(plan: StackSettings, data: Path | None) -> int:
    wrong = problems(plan)
    if wrong:
        print("the stack cannot start:", *wrong, sep="\n- ", file=sys.stderr)
        return BAD_USAGE
    with _folder(data) as folder, stack(plan, folder) as running:
        _say(running, plan, folder)
        running.watch()
    return OK


def _say(running: Stack, plan: StackSettings, folder: Path) -> None:
    print(f"Shardwatch     {running.demo.url}/metrics   scenario {plan.scenario}")
    print(f"Prometheus     {running.prometheus.url}/alerts")
    print(f"Alertmanager   {running.alertmanager.url}/#/alerts")
    print(f"Notifications  {running.receiver.url}/")
    print(f"Logs           {folder}")
    print("stop with Ctrl-C", flush=True)


@contextlib.contextmanager
def _folder(chosen: Path | None) -> Iterator[Path]:
    if chosen is None:
        with tempfile.TemporaryDirectory(prefix="shardwatch-stack-") as name:
            yield Path(name)
        return
    try:
        chosen.mkdir(parents=True, exist_ok=True)
        (chosen / "demo.log").touch()
    except OSError as error:
        raise StackError(f"--data {chosen}: cannot be written: {error.strerror}") from error
    yield chosen.absolute()


def _plan(arguments: argparse.Namespace) -> StackSettings:
    return StackSettings(
        scenario=arguments.scenario,
        fault_at=arguments.fault_at,
        fault_until=arguments.fault_until,
        seed=arguments.seed,
        demo_port=arguments.demo_port,
        prometheus_port=arguments.prometheus_port,
        alertmanager_port=arguments.alertmanager_port,
        receiver_port=arguments.receiver_port,
        language=arguments.language,
        rules=arguments.rules,
        alertmanager_config=arguments.alertmanager_config,
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m compose.native",
        description="Start the demo, Prometheus, Alertmanager and a page of notifications on loopback, as generated.",
        epilog="`make stack ARGS='--scenario heat --fault-at 60'` is the same.  A port of 0 is any free one.  "
        "Exit codes: 0 ended by Ctrl-C or SIGTERM, 1 a server failed, 2 something is to be put right first.",
    )
    add = parser.add_argument
    add("--scenario", default="healthy", metavar="NAME", help="of `shardwatch demo --list` (default: %(default)s)")
    add("--fault-at", type=float, metavar="SECONDS", help="when the scenario's fault begins")
    add("--fault-until", type=float, metavar="SECONDS", help="when it is mended (default: never)")
    add("--seed", type=int, default=0, help="another seed is another day (default: %(default)s)")
    add("--language", choices=("en", "zh"), default="en", help="of the alerts' texts (default: %(default)s)")
    add("--rules", type=Path, metavar="FILE", help="another rule file than the generated one")
    add(
        "--alertmanager-config",
        type=Path,
        metavar="FILE",
        help="used as it is, instead of the generated one led to the receiver",
    )
    add("--demo-port", type=int, default=9853, metavar="PORT", help="(default: %(default)s)")
    add("--prometheus-port", type=int, default=9090, metavar="PORT", help="(default: %(default)s)")
    add("--alertmanager-port", type=int, default=9093, metavar="PORT", help="(default: %(default)s)")
    add(
        "--receiver-port",
        type=int,
        default=9095,
        metavar="PORT",
        help="of the page that shows notifications (default: %(default)s)",
    )
    add("--data", type=Path, metavar="DIR", help="keep data and logs here (default: a folder that goes at the end)")
    return parser


if __name__ == "__main__":
    sys.exit(main())

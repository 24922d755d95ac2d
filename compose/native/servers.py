"""The servers of the stack on loopback, each as a context that gives a ``Child`` with its ``url``.

Port 0 lets the server choose a free one.  A configuration is checked by promtool or amtool before the server starts:
their messages name the line, those of a server that gives up often do not.
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from compose.native import ports
from compose.native.child import Child, running
from compose.native.errors import StackError
from compose.native.programs import ALERTMANAGER, AMTOOL, PROMETHEUS, PROMTOOL, VICTORIA_METRICS, refusal

ROOT = Path(__file__).parent.parent.parent
LISTENS = r"Listening on\"?[^\n]*? address=(\S+)"  # newer servers name the component in between
SERVES = r"(?m)^metrics\s+(http://\S+)/metrics$"  # what the daemon says on a simulated node
LOOPBACK = "127.0.0.1"


@contextlib.contextmanager
def demo(folder: Path, *, port: int = 0, arguments: Sequence[str] = ()) -> Iterator[Child]:
    """Run ``shardwatch demo`` with further ``arguments``; ready once it has data."""
    command = [sys.executable, "-m", "exporter", "demo", "--listen", f"{LOOPBACK}:{port}", *arguments]
    with running("demo", command, folder, {"PYTHONPATH": str(ROOT)}) as child:
        child.url = child.wait_for(SERVES)
        child.wait_until_ready("/-/ready")
        yield child


@contextlib.contextmanager
def prometheus(
    folder: Path, config: Mapping[str, Any], *, port: int = 0, data: str = "prometheus", arguments: Sequence[str] = ()
) -> Iterator[Child]:
    """Run Prometheus on ``config`` (what its YAML says, as a dict), its data in the folder ``data`` below ``folder``.

    ``rule_files`` must be absolute, or relative to ``folder``.
    """
    program = PROMETHEUS.required()
    written = _written(folder, "prometheus.yaml", config)
    _accept(refusal(PROMTOOL, "check", "config", str(written)))
    command = [
        program,
        f"--config.file={written}",
        f"--storage.tsdb.path={folder / data}",
        f"--web.listen-address={LOOPBACK}:{port}",
        "--web.enable-lifecycle",
        *arguments,
    ]
    with running("prometheus", command, folder) as child:
        child.url = f"http://{child.wait_for(LISTENS)}"
        child.wait_until_ready("/-/ready")
        yield child


@contextlib.contextmanager
def alertmanager(
    folder: Path, config: Mapping[str, Any] | Path, *, port: int = 0, arguments: Sequence[str] = ()
) -> Iterator[Child]:
    """Run Alertmanager on ``config`` (a file, or what its YAML says as a dict), alone: no cluster."""
    program = ALERTMANAGER.required()
    file = config if isinstance(config, Path) else _written(folder, "alertmanager.yaml", config)
    _accept(refusal(AMTOOL, "check-config", str(file)))
    command = [
        program,
        f"--config.file={file}",
        f"--storage.path={folder / 'alertmanager'}",
        f"--web.listen-address={LOOPBACK}:{port}",
        "--cluster.listen-address=",
        *arguments,
    ]
    with running("alertmanager", command, folder) as child:
        child.url = f"http://{child.wait_for(LISTENS)}"
        child.wait_until_ready("/-/ready")
        yield child


def _written(folder: Path, name: str, config: Mapping[str, Any]) -> Path:
    place = folder / name
    place.write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")  # JSON is YAML
    return place


def _accept(refused: str) -> None:
    if refused:
        raise StackError(refused)


@contextlib.contextmanager
def receiver(folder: Path, *, port: int = 0) -> Iterator[Child]:
    """Run the page that shows notifications; Alertmanager posts to its ``url``."""
    command = [sys.executable, str(ROOT / "compose" / "receiver" / "receiver.py"), "--listen", f"{LOOPBACK}:{port}"]
    with running("receiver", command, folder) as child:
        child.url = child.wait_for(r"(?m)^notifications (http://\S+?)/?$")
        child.wait_until_ready("/")
        yield child


@contextlib.contextmanager
def victoria_metrics(folder: Path, *, arguments: Sequence[str] = ()) -> Iterator[Child]:
    """Run VictoriaMetrics on a free port; remote write goes to ``/api/v1/write``."""
    port = ports.any_free()  # it would listen on port 0, and not say where that is
    command = [
        VICTORIA_METRICS.required(),
        f"-storageDataPath={folder / 'victoria-metrics'}",
        f"-httpListenAddr={LOOPBACK}:{port}",
        "-loggerTimezone=UTC",
        *arguments,
    ]
    with running("victoria-metrics", command, folder) as child:
        child.url = f"http://{LOOPBACK}:{port}"
        child.wait_until_ready("/health")
        yield child

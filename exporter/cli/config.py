"""The commands about the configuration and the command line itself; none of them loads the daemon."""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

from exporter.cli import streams
from exporter.cli.exit_codes import BAD_USAGE, OK
from exporter.cli.setup import read_settings
from exporter.config.parsers import format_duration
from exporter.config.settings import DiscoverySettings, Settings, default
from exporter.errors import SettingsError
from exporter.model.text import Language

EXPIRES_SOON = 14 * 86_400  # seconds; of a certificate, as the alerts judge by


def check(arguments: argparse.Namespace) -> int:
    """Print whether a configuration is valid, and hints, or every problem with it."""
    from exporter.config import chinese  # noqa: PLC0415
    from exporter.config.lint import config_lint  # noqa: PLC0415

    language = Language(arguments.lang)
    try:
        settings = read_settings(arguments.file)
        hints = [*config_lint(settings), *web_hints(settings, time.time())]
    except SettingsError as error:
        print(f"shardwatch check-config: {chinese.refusal(error, language)}", file=sys.stderr)
        return BAD_USAGE
    if settings == default(os.environ):
        hints.insert(0, "the file sets nothing, so the defaults apply; shardwatch config --example shows every key")
    streams.print_lines(*chinese.lines(arguments.file, summary(settings), hints, language))
    return OK


def web_hints(settings: Settings, unix_now: float) -> list[str]:
    """Return hints at what the web configuration leaves open, and at a certificate that has expired or soon will."""
    if settings.web_config_file is None:
        return []
    from exporter.config.lint import access_hints  # noqa: PLC0415
    from exporter.http.server.web_config import read_access  # noqa: PLC0415 - most nodes have none

    access = read_access(settings.web_config_file)
    hints = access_hints(settings, access.protections)
    expires = access.certificate_expires
    if expires is None or expires - unix_now >= EXPIRES_SOON:
        return hints
    if expires <= unix_now:
        return [*hints, "web_config_file: the certificate has expired; clients that verify it refuse it"]
    return [
        *hints,
        f"web_config_file: the certificate expires in {format_duration(int(expires - unix_now) // 60 * 60)}",
    ]


def summary(settings: Settings) -> str:
    """Return what a configuration monitors, in a few words."""
    pages = len(settings.gpu.pages)
    sources = ["NVML"] if settings.gpu.enabled else []
    sources += [f"{pages} exporter{'s' * (pages != 1)}"] if pages else []
    gpus = f"GPUs through {' and '.join(sources)}" if sources else "no GPUs"
    engines, gateways = len(settings.engines), len(settings.gateways)
    listed = f"{engines} engine{'s' * (engines != 1)} and {gateways} gateway{'s' * (gateways != 1)} configured"
    found = ", ".join(_discovered(settings.discovery))
    return f"{gpus}; {listed}; {f'engines also discovered from {found}' if found else 'discovery of engines is off'}"


def _discovered(discovery: DiscoverySettings) -> list[str]:
    ways = {
        "processes": discovery.processes,
        "Ray": discovery.ray,
        "files": discovery.file_sd,
        "HTTP": discovery.http_sd,
        "Kubernetes": discovery.kubernetes.enabled,
    }
    return [name for name, enabled in ways.items() if enabled]


def show(arguments: argparse.Namespace) -> int:
    """Print the example, the JSON Schema or the reference of the configuration."""
    from exporter.config import reference  # noqa: PLC0415

    render = {"example": reference.example, "schema": reference.json_schema, "reference": reference.reference}
    streams.write(render[arguments.print]().encode())
    return OK


def completion(arguments: argparse.Namespace) -> int:
    """Print the completion script of a shell, which is generated when the program is built."""
    streams.write(Path(__file__).with_name(f"completion.{arguments.shell}").read_bytes())
    return OK

"""What several commands begin with: the settings, and the log on standard error."""

from __future__ import annotations

import logging
import os

from msgspec.structs import replace

from exporter.config import settings
from exporter.config.settings import LogSettings, Settings
from exporter.log_writer import LogHandler, stderr_writer
from exporter.logs import formatter


def read_settings(path: str | None, listen: str | None = None) -> Settings:
    """Read the configuration, or the environment alone; ``listen`` overrides the address.  Raises SettingsError.

    The web configuration that it names is read as well, and only to refuse a bad one.
    """
    found = settings.load(path, os.environ) if path is not None else settings.default(os.environ)
    if found.web_config_file is not None:
        from exporter.http.server.web_config import read_access  # noqa: PLC0415 - most nodes have none

        read_access(found.web_config_file)
    return found if listen is None else replace(found, listen=settings.parse_listen(listen))


def log_to_stderr(log: LogSettings) -> None:
    """Log to standard error from now on, in the format and from the level of the settings."""
    handler = LogHandler(stderr_writer)
    handler.setFormatter(formatter(log.format))
    logging.basicConfig(level=log.level.upper(), handlers=[handler], force=True)

"""The format of each protocol that is pushed; loads the libraries of those that are used."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from exporter.catalog.spec import SeriesSet
from exporter.render.editions import EditionReader, Extra

if TYPE_CHECKING:
    from exporter.render.otlp import OtlpFormat
    from exporter.render.remote_write import RemoteWriteFormat


def push_format(
    protocol: str, labels: Mapping[str, str], series: str, extra: Extra
) -> RemoteWriteFormat | OtlpFormat:
    """Return the format of a receiver; ``extra`` returns families about the daemon's own process."""
    reader = EditionReader(series=SeriesSet(series), extra=extra)
    if protocol == "otlp":
        from exporter.render.otlp import OtlpFormat  # noqa: PLC0415 - needs the extra otlp

        return OtlpFormat(reader, labels)
    from exporter.render.remote_write import RemoteWriteFormat  # noqa: PLC0415 - needs the extra push

    return RemoteWriteFormat(reader, labels)

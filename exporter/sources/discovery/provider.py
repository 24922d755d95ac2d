"""What a discovery provider returns: engines at URLs that are safe to request, a problem, and a warning for the log.

Whoever writes these lists chooses only where a plain GET without credentials goes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from msgspec import Struct

from exporter.config import parsers
from exporter.errors import SourceError
from exporter.http.client.url import redact_url
from exporter.model import Pod

MAX_TARGETS = 1000  # read from one list; what is more is left out
_MAX_NAME = 128  # characters, as for names in the configuration


class DiscoveredEngine(Struct, frozen=True, kw_only=True):
    """One metrics page.  ``name`` "" means: by its host and port; ``kind`` is as listed, and may be no known kind.

    ``tentative``: that it is an engine is a guess, so its page is read before it becomes a replica.
    ``unverified``: its certificate is not verified.  Only for a server on this very node, whose certificate names
    other hosts than the address it is reached by; nothing secret is sent there, and over http less would be known.
    ``owner`` and ``uses_gpu``: whose it is, and whether it holds a GPU, where users of the node add engines.
    """

    url: str
    name: str = ""
    kind: str = ""
    image: str = ""  # of its container, where the place knows it
    tentative: bool = False
    unverified: bool = False
    owner: str = ""
    uses_gpu: bool = False

    def __repr__(self) -> str:
        """Return what is safe to show of it: a query may hold a secret."""
        return f"DiscoveredEngine({redact_url(self.url)}, name={self.name!r}, kind={self.kind!r})"


class DiscoveryResult(Struct, frozen=True, kw_only=True):
    """The result of one refresh.  ``engines`` is the last good list where there is a ``problem``.

    ``pods``: all of this node, where the provider lists pods.
    ``problem`` is the same object for as long as nothing new was read.  ``warning`` is no failure, yet worth a line.
    """

    engines: tuple[DiscoveredEngine, ...] = ()
    pods: tuple[Pod, ...] = ()
    problem: SourceError | None = None
    warning: str = ""


class DiscoveryProvider(Protocol):
    """A list of engines; ``name`` is a closed word, as in ``discovery:file_sd``."""

    @property
    def name(self) -> str: ...  # noqa: D102

    def refresh(self) -> DiscoveryResult:
        """Read the list once, bounded in time and size; never raises for what it reads."""

    def close(self) -> None:
        """Close connections."""


def engine_at(
    address: object, labels: Mapping[object, object], *, tentative: bool = False, owner: str = ""
) -> DiscoveredEngine | None:
    """Return an engine of ``HOST:PORT`` and its labels as Prometheus means them; None when it cannot be asked.

    Reads ``__scheme__``, ``__metrics_path__``, ``replica`` or ``name``, ``engine`` or ``kind``, and ``image``.
    """
    scheme, path = labels.get("__scheme__") or "http", labels.get("__metrics_path__") or "/metrics"
    if not isinstance(address, str) or not address or set(address) & set("/?#@\\"):
        return None
    if not isinstance(path, str) or scheme not in ("http", "https"):
        return None
    try:
        url = parsers.url(f"{scheme}://{address}{path if path.startswith('/') else '/' + path}")
    except parsers.Invalid:
        return None
    return DiscoveredEngine(
        url=url,
        name=_name(labels),
        kind=_word(labels, "engine") or _word(labels, "kind"),
        image=_image(labels),
        tentative=tentative,
        owner=owner,
    )


def _name(labels: Mapping[object, object]) -> str:
    name = _word(labels, "replica") or _word(labels, "name")
    return name if name.isprintable() and name == name.strip() and len(name) <= _MAX_NAME else ""


def _image(labels: Mapping[object, object]) -> str:
    try:
        return parsers.image(_word(labels, "image"))
    except parsers.Invalid:
        return ""


def _word(labels: Mapping[object, object], name: str) -> str:
    value = labels.get(name)
    return value if isinstance(value, str) else ""

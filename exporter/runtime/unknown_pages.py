"""What to say of a page that its section of the configuration does not know: what was seen, and where it belongs."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

from exporter.engines import detect as engines
from exporter.engines.parse.text import holds_samples
from exporter.engines.tables import ENGINES
from exporter.gateways import detect as gateways
from exporter.gateways.tables import GATEWAYS
from exporter.gpu_pages import tables as gpu_pages
from exporter.gpu_pages.tables import GPU_EXPORTERS
from exporter.stores import tables as stores
from exporter.stores.tables import STORES


class TargetSection(Struct, frozen=True, kw_only=True):
    """A section of the configuration that lists targets."""

    name: str
    target: str  # what it lists, with its article
    titles: tuple[str, ...]  # of what is understood there
    recognise: Callable[[bytes], object | None]
    guide: str  # where to read on


ENGINE = TargetSection(
    name="engines",
    target="an engine",
    titles=tuple(engine.title for engine in ENGINES),
    recognise=engines.recognise,
    guide="docs/engines.md has the ports, CONTRIBUTING.md how to add an engine",
)
GATEWAY = TargetSection(
    name="gateways",
    target="a gateway",
    titles=tuple(gateway.title for gateway in GATEWAYS),
    recognise=gateways.recognise,
    guide="docs/gateways.md has what each shows, CONTRIBUTING.md how to add a gateway",
)
STORE = TargetSection(
    name="stores",
    target="a KV-cache store",
    titles=tuple(store.title for store in STORES),
    recognise=stores.recognise,
    guide="docs/stores.md has the ports, CONTRIBUTING.md how to add a store",
)
GPU_PAGE = TargetSection(
    name="gpu.pages",
    target="a GPU exporter",
    titles=tuple(exporter.title for exporter in GPU_EXPORTERS),
    recognise=gpu_pages.recognise,
    guide="docs/gpu-exporters.md has the ports, CONTRIBUTING.md how to add a GPU exporter",
)
_SECTIONS = (ENGINE, GATEWAY, STORE, GPU_PAGE)


def explain(body: bytes, section: TargetSection) -> str:
    """Return what to say of a page that ``section`` does not know."""
    if not holds_samples(body):
        return "the answer has no line that is a Prometheus sample"
    elsewhere = next((other for other in _SECTIONS if other is not section and other.recognise(body)), None)
    if elsewhere is not None:
        return f"the page is of {elsewhere.target}; list it under {elsewhere.name}"
    families = ", ".join(engines.families(body)) or "nothing but figures of a process"
    return (
        f"the page has {families}, and no metrics of {', '.join(section.titles)}; is this the URL of "
        f"{section.target}? {section.guide}"
    )

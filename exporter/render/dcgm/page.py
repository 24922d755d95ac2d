"""Snapshot × one dialect's rows → text 0.0.4, with the labels of DCGM's exporter in their order.

A MIG instance has its parent's labels and two of its own.  Two compute instances of one GPU instance share memory,
counters and DCGM's labels, so the first represents both.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from exporter.model import EMPTY, CardFacts, CardReading, MigInstance, Snapshot, XidCount
from exporter.render.dcgm.page_query import PageQuery
from exporter.render.dcgm.pods import PodLabels, pod_labels
from exporter.render.dcgm.query import dialect_of, hostname_labels, rows
from exporter.render.dcgm.rates import LinkRates, Rates
from exporter.render.dcgm.recent import Recent
from exporter.render.dcgm.row import DcgmRow
from exporter.render.dcgm.value import CardView
from exporter.render.exposition import escape_label

NOTHING_READ = CardReading(at=0.0, signals=EMPTY)


def render(
    snapshot: Snapshot,
    query: PageQuery,
    *,
    hostname: str,
    rates: Rates,
    recent: Recent = EMPTY,
    clock_events: Mapping[str, Mapping[str, int]] = EMPTY,
    link_rates: LinkRates = EMPTY,
    with_pods: bool = False,
) -> str:
    """Render a snapshot; of a GPU without a fresh reading only its XIDs, which may be the reason.

    ``with_pods``: with the labels of the pod that uses a GPU.
    """
    pods: PodLabels = pod_labels(snapshot.owners) if with_pods else EMPTY
    driver = snapshot.driver.driver_version if snapshot.driver is not None else ""
    xids = _by_card(snapshot)
    parents = {card.facts.uuid: card.facts for card in snapshot.cards}
    cards: dict[str, CardView] = {}
    represented: set[str] = set()
    for card in snapshot.cards:
        instance, uuid = card.facts.instance, card.facts.uuid
        parent = card.facts if instance is None else parents.get(instance.parent)
        view = CardView(
            reading=card.reading or NOTHING_READ,
            rates=rates.get(uuid, EMPTY) if card.reading is not None else EMPTY,
            xids=xids.get(uuid),
            recent=recent.get(uuid, EMPTY),
            clock_events=clock_events.get(uuid) if card.reading is not None and card.reading.clock_events else None,
            link_rates=link_rates.get(uuid, EMPTY)
            if card.reading is not None and card.reading.nvlink_bytes
            else EMPTY,
        )
        if parent is not None and (card.reading is not None or view.reported):
            labels = _labels(parent, instance, query, hostname, driver)
            if labels not in represented:
                represented.add(labels)
                more = _written(pods.get(uuid, ()))
                cards[f"{labels},{more}" if more else labels] = view
    out: list[str] = []
    for row in rows(query):
        lines = [line for labels, view in cards.items() for line in _lines(row, labels, view)]
        if lines:
            out.append(f"# HELP {row.name} {row.help}\n# TYPE {row.name} {row.kind}\n")
            out += lines
    return "".join(out)


def _by_card(snapshot: Snapshot) -> dict[str, tuple[XidCount, ...]]:
    found: dict[str, list[XidCount]] = {}
    for events in snapshot.xids:
        found.setdefault(events.labels.uuid, []).append(events)
    return {uuid: tuple(counts) for uuid, counts in found.items()}


def _lines(row: DcgmRow, labels: str, card: CardView) -> Iterator[str]:
    if row.value is not None:
        value = row.value(card)
        if value is not None:
            yield f"{row.name}{{{labels}}} {value if isinstance(value, int) else format(value, '.6f')}\n"
    elif row.split is not None:
        for more, number in row.split(card):
            yield f"{row.name}{{{labels},{_written(more)}}} {number}\n"


def _labels(facts: CardFacts, instance: MigInstance | None, query: PageQuery, hostname: str, driver: str) -> str:
    pairs = [
        ("gpu", str(facts.index)),
        ("UUID", facts.uuid),
        ("pci_bus_id", facts.pci_bus_id),
        ("device", f"nvidia{facts.index}"),
        ("modelName", facts.name),
        *(
            [("GPU_I_PROFILE", instance.profile), ("GPU_I_ID", str(instance.gpu_instance))]
            if instance is not None
            else []
        ),
        *[(name, hostname) for name in hostname_labels(query)],
    ]
    if driver:
        pairs.append((dialect_of(query).driver_label, driver))
    return _written(pairs)


def _written(pairs: Sequence[tuple[str, str]]) -> str:
    return ",".join(f'{name}="{escape_label(value)}"' for name, value in pairs)

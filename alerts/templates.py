"""What an annotation may contain: labels and the value of the alert, optional parts, and values that are queried.

Prometheus shows a template that it cannot expand as an error text in the message; so everything is checked here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from exporter.model.text import Language, Text

_TEMPLATE = re.compile(r"\{\{(.*?)\}\}")
_HUMANIZE = r"(?:humanize|humanize1024|humanizeDuration|humanizePercentage)"
_LABEL = re.compile(r"\$labels\.([a-z_]+)(?: \| urlquery)?\Z")
_WITH_LABEL = re.compile(r"with \$labels\.([a-z_]+)\Z")
_WITH_QUERY = re.compile(r"with printf `[^`]+` ((?:(?:\$labels\.[a-z_]+|\$value) ?)+)\| query\Z")
_VALUE = re.compile(rf"\$value \| {_HUMANIZE}\Z")
_OF_QUERY = re.compile(rf'\. \| first \| (?:value \| {_HUMANIZE}|label "[a-z_]+")\Z')


def labels_used(text: Text, optional: frozenset[str]) -> frozenset[str]:
    """Return the labels that a text needs, optional ones excluded; raises ValueError for what would not expand."""
    used: list[set[str]] = []
    for language in Language:
        sentence = text.in_(language)
        if not sentence.strip():
            raise ValueError(f"is empty in {language.value}")
        if sentence.count("{{") != sentence.count("}}"):
            raise ValueError("opens or closes a template that it does not close or open")
        used.append(set(_walk(sentence, optional)))
    if used[0] != used[1]:
        raise ValueError("names other labels in one language than in the other")
    return frozenset(used[0])


def _walk(sentence: str, optional: frozenset[str]) -> Iterator[str]:
    inside = ""  # "query", or the label whose part is shown only where the label exists
    for template in _TEMPLATE.findall(sentence):
        inner = template.strip()
        if label := _LABEL.match(inner):
            yield label[1]
        elif not inside and (query := _WITH_QUERY.match(inner)):
            inside = "query"
            yield from (name for name in re.findall(r"\$labels\.([a-z_]+)", query[1]) if name not in optional)
        elif not inside and (part := _WITH_LABEL.match(inner)) and part[1] in optional:
            inside = part[1]
        elif inside and inner == "end":
            inside = ""
        elif not (_VALUE.match(inner) or _expands(inner, inside)):
            raise ValueError(
                f"contains {{{{{template}}}}}; allowed are $labels.NAME, $value with a humanize function, "
                "parts about optional labels, and alerts.lookups"
            )
    if inside:
        raise ValueError(f"begins a part about {inside} and does not end it")


def _expands(inner: str, inside: str) -> bool:
    return bool(_OF_QUERY.match(inner)) if inside == "query" else bool(inside) and inner == "."

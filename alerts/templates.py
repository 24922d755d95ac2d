"""What an annotation may contain: labels and the value of the alert, optional parts, and values that are queried.

Prometheus shows a template that it cannot expand as an error text in the message; so everything is checked here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from exporter.model.text import Language, Text

_TEMPLATE = re.compile(r"\{\{(.*?)\}\}")
_FORM = r'(?:humanize|humanize1024|humanizeDuration|humanizePercentage|printf "%\.\d[fg]")'
_LABEL = re.compile(r"\$labels\.([a-z_]+)(?: \| urlquery)?\Z")
_WITH_LABEL = re.compile(r"with \$labels\.([a-z_]+)\Z")
_WITH_QUERY = re.compile(r"with printf `[^`]+` ((?:(?:\$labels\.[a-z_]+|\$value) ?)+)\| query\Z")
_WITH_VALUE_OF_LABEL = re.compile(r'with \. \| first \| label "[a-z_]+"\Z')
_CASE = re.compile(r'(else )?if (?:eq \. "[a-z0-9_]+"|match "\^\([0-9|]+\)\$" \.)\Z')
_CHOICE_OF_WORDS = re.compile(r"\{\{ if [^}]*\}\}(.*?)\{\{ else \}\}\{\{ \. \}\}\{\{ end \}\}")
_OTHER_WORD = re.compile(r"\{\{ else if [^}]*\}\}")
_VALUE = re.compile(rf"\$value \| {_FORM}\Z")
_OF_QUERY = re.compile(rf'\. \| first \| (?:value \| {_FORM}|label "[a-z_]+")\Z')
_RANGE = re.compile(r'range \$i, \$each := \. \| sortByLabel "[a-z_]+"\Z')
_OF_EACH = re.compile(r'\$each \| label "[a-z_]+"\Z')
_QUERY, _WORD, _CHOICE, _EACH, _COMMA = (
    "query",
    "value of a label",
    "choice",
    "series",
    "comma",
)  # what a part of a text is about


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
    inside: list[str] = []
    for template in _TEMPLATE.findall(sentence):
        inner = template.strip()
        if label := _LABEL.match(inner):
            yield label[1]
        elif not inside and (query := _WITH_QUERY.match(inner)):
            inside.append(_QUERY)
            yield from (name for name in re.findall(r"\$labels\.([a-z_]+)", query[1]) if name not in optional)
        elif not inside and (part := _WITH_LABEL.match(inner)):
            inside.append(_WORD)
            yield from {part[1]} - optional
        elif not _moves(inner, inside) and not (_VALUE.match(inner) or _expands(inner, inside)):
            raise ValueError(
                f"contains {{{{{template}}}}}; allowed are $labels.NAME, $value with a humanize function or printf, "
                "parts about labels, and alerts.lookups"
            )
    if inside:
        raise ValueError(f"begins a part about a {inside[-1]} and does not end it")


def _moves(inner: str, inside: list[str]) -> bool:
    """Begin or end a part of the text; return whether the template does."""
    innermost = inside[-1] if inside else ""
    if innermost and inner == "end":
        inside.pop()
    elif innermost == _QUERY and _WITH_VALUE_OF_LABEL.match(inner):
        inside.append(_WORD)
    elif innermost == _QUERY and _RANGE.match(inner):
        inside.append(_EACH)
    elif innermost == _EACH and inner == "if $i":
        inside.append(_COMMA)
    elif innermost in {_WORD, _CHOICE} and (case := _CASE.match(inner)) and bool(case[1]) is (innermost == _CHOICE):
        inside += [] if case[1] else [_CHOICE]
    else:
        return innermost in {_WORD, _CHOICE} and inner == "else"
    return True


def _expands(inner: str, inside: list[str]) -> bool:
    if inside and inside[-1] == _QUERY:
        return bool(_OF_QUERY.match(inner))
    if inside and inside[-1] == _EACH:
        return bool(_OF_EACH.match(inner))
    return bool(inside) and inner == "."


def with_longest_words(line: str) -> str:
    """Return a text in which the longest word takes the place of each choice between words."""
    return _CHOICE_OF_WORDS.sub(lambda found: max(_OTHER_WORD.split(found[1]), key=len), line)

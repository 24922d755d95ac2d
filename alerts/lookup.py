"""A sentence of a description with a value that is queried when the alert fires.

Prometheus evaluates the query while it expands the annotation.  A query without a result leaves the sentence out, so
that a description never shows an empty value.
"""

from __future__ import annotations

import re

from alerts import words
from exporter.model.text import Language, Text
from exporter.promql import Expr

_BOUND = re.compile(r'"@([a-z_]+)@"')
VALUE = re.compile(r"\[value (\w+)\]")
_LABEL = re.compile(r"\[label ([a-z_]+)\]")
_WORD = re.compile(r"\[(action|verdict|reason) ([a-z_]+)\]")
_WORDS = {"action": words.ACTIONS, "verdict": words.VERDICTS, "reason": words.REASONS}
# How a value is written, and what it is multiplied by before: three digits say what there is to know at night.
_FORMS = {
    "count": (1, 'printf "%.0f"', ""),
    "number": (1, 'printf "%.3g"', ""),
    "percent": (100, 'printf "%.3g"', "%"),
    "points": (100, 'printf "%.0f"', ""),
    "milliseconds": (1e3, 'printf "%.1f"', " ms"),
    "megahertz": (1e-6, 'printf "%.0f"', " MHz"),
    "watts": (1, 'printf "%.0f"', " W"),
    "bytes": (1, "humanize1024", "B"),
    "seconds": (1, 'printf "%.3g"', " s"),
}


def bound(*labels: str) -> dict[str, str]:
    """Return matchers that take their values from the alert's labels of the same names."""
    return {label: f"@{label}@" for label in labels}


def lookup(query: Expr, en: str, zh: str) -> Text:
    """Return a sentence with a leading space in English, shown when the query has a result.

    ``[value FORM]`` and ``[label NAME]`` stand for the value, in one of ``_FORMS``, and a label of the first series;
    ``[action NAME]``, ``[verdict NAME]``, ``[reason NAME]`` and ``[meaning]`` for the words of ``alerts.words``.
    """
    forms = set(VALUE.findall(en))
    if forms != set(VALUE.findall(zh)) or len(forms) > 1:
        raise ValueError(f"a value has one form, the same in both languages: {en!r}")
    factor = _FORMS[forms.pop()][0] if forms else 1
    text = str(query if factor == 1 else query * factor)
    labels = " ".join(f"$labels.{label}" for label in _BOUND.findall(text))
    form = _BOUND.sub("%q", text)
    start = f"{{{{ with printf `{form}` {labels} | query }}}}"
    english, chinese = _filled(en, Language.ENGLISH), _filled(zh, Language.CHINESE)
    return Text(f"{start} {english}{{{{ end }}}}", f"{start}{chinese}{{{{ end }}}}")


def listed(query: Expr, en: str, zh: str) -> Text:
    """Return a sentence shown when the query has a result; what is in its braces is said of each series.

    ``[label NAME]`` stands for a label of the series: ``Seen from {[label instance]}.``
    """
    text = str(query)
    labels = " ".join(f"$labels.{label}" for label in _BOUND.findall(text))
    start = f"{{{{ with printf `{_BOUND.sub('%q', text)}` {labels} | query }}}}"

    def filled(sentence: str, comma: str) -> str:
        before, each, after = re.split(r"[{}]", sentence)
        item = _LABEL.sub(r'{{ $each | label "\1" }}', each)
        between = f"{{{{ if $i }}}}{comma}{{{{ end }}}}"
        begin = f'{{{{ range $i, $each := . | sortByLabel "{_LABEL.findall(each)[0]}" }}}}'
        return f"{before}{begin}{between}{item}{{{{ end }}}}{after}"

    return Text(f"{start} {filled(en, ', ')}{{{{ end }}}}", f"{start}{filled(zh, '、')}{{{{ end }}}}")


def _filled(sentence: str, language: Language) -> str:
    def word(found: re.Match[str]) -> str:
        chosen = words.chosen(_WORDS[found[1]], language)
        if found[1] == "reason":  # which a verdict to serve has not
            chosen = Text(f" ({chosen})", f"，{chosen}").in_(language)
        return f'{{{{ with . | first | label "{found[2]}" }}}}{chosen}{{{{ end }}}}'

    def value(found: re.Match[str]) -> str:
        _, form, unit = _FORMS[found[1]]
        return f"{{{{ . | first | value | {form} }}}}{unit}"

    sentence = _WORD.sub(word, sentence).replace("[meaning]", words.meaning(language))
    sentence = VALUE.sub(value, sentence)
    return _LABEL.sub(r'{{ . | first | label "\1" }}', sentence)

"""One sentence in every language that the alerts speak."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Language(str, Enum):
    """What ``--language`` takes."""

    ENGLISH = "en"
    CHINESE = "zh"


@dataclass(frozen=True, slots=True)
class Text:
    """The same sentence in English and Chinese; both may hold the same ``{{ … }}`` templates."""

    en: str
    zh: str

    def in_(self, language: Language) -> str:
        """Give the sentence in one language."""
        return self.zh if language is Language.CHINESE else self.en

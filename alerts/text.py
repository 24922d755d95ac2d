"""A text in every supported language."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Language(str, Enum):
    """The languages of ``--language``."""

    ENGLISH = "en"
    CHINESE = "zh"


@dataclass(frozen=True, slots=True)
class Text:
    """The same text in English and Chinese; both contain the same ``{{ … }}`` templates."""

    en: str
    zh: str

    def in_(self, language: Language) -> str:
        """Return the text in one language."""
        return self.zh if language is Language.CHINESE else self.en

    def __add__(self, other: Text) -> Text:
        """Return both texts, one after the other."""
        return Text(self.en + other.en, self.zh + other.zh)

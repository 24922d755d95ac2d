"""One sentence in every language that Shardwatch speaks."""

from __future__ import annotations

from enum import Enum

from msgspec import Struct


class Language(str, Enum):
    """What ``--language`` takes."""

    ENGLISH = "en"
    CHINESE = "zh"


class Text(Struct, frozen=True):
    """The same sentence in English and Chinese; both may hold the same templates."""

    en: str
    zh: str

    def in_(self, language: Language) -> str:
        """Return the sentence in one language."""
        return self.zh if language is Language.CHINESE else self.en

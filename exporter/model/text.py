"""A text in every supported language; findings, alerts and dashboards share it."""

from __future__ import annotations

from enum import Enum

from msgspec import Struct


class Language(str, Enum):
    """The languages of ``--language`` and ``?lang=``."""

    ENGLISH = "en"
    CHINESE = "zh"


class Text(Struct, frozen=True):
    """The same text in English and Chinese; both contain the same templates (``{replica}``, ``{{ $value }}``)."""

    en: str
    zh: str

    def in_(self, language: Language) -> str:
        """Return the text in one language."""
        return self.zh if language is Language.CHINESE else self.en

    def __add__(self, other: Text) -> Text:
        """Return both texts, one after the other."""
        return Text(self.en + other.en, self.zh + other.zh)

"""How a request ended, in one vocabulary for all engines and gateways."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

from msgspec import Struct

from exporter.model.source import EMPTY


class RequestOutcome(str, Enum):
    """How a request ended; the value is the label ``outcome``."""

    SUCCESS = "success"  # answered, in full or up to the length that was asked for
    ERROR = "error"  # the server's own failure
    REJECTED = "rejected"  # load that the server shed on purpose
    INVALID = "invalid"  # the client's mistake
    CANCELLED = "cancelled"  # the client went away, or took the request back


# Who ended it, if not the server.
CLIENT_OUTCOMES = frozenset((RequestOutcome.INVALID.value, RequestOutcome.CANCELLED.value))

STATUS_CLASSES = {
    "2": RequestOutcome.SUCCESS,
    "3": RequestOutcome.SUCCESS,
    "4": RequestOutcome.INVALID,
    "5": RequestOutcome.ERROR,
}


class OutcomeWords(Struct, frozen=True, kw_only=True):
    """What an engine's or gateway's words for the end of a request mean.

    ``status``: the words are HTTP statuses, or classes of them, and those not listed mean what their class does.
    """

    otherwise: RequestOutcome
    words: Mapping[str, RequestOutcome] = EMPTY
    status: bool = False

    def classify(self, word: str) -> RequestOutcome:
        """Return the outcome that a word means."""
        if word in self.words:
            return self.words[word]
        return STATUS_CLASSES.get(word[:1], self.otherwise) if self.status else self.otherwise


ALWAYS_SUCCESS = OutcomeWords(otherwise=RequestOutcome.SUCCESS)
ALWAYS_ERROR = OutcomeWords(otherwise=RequestOutcome.ERROR)
# 408: Ray Serve and LiteLLM waited for the model in vain.  499, also of nginx: the client closed the connection
# before the answer.
HTTP_STATUS = OutcomeWords(
    otherwise=RequestOutcome.ERROR,
    words={
        "408": RequestOutcome.ERROR,
        "429": RequestOutcome.REJECTED,
        "499": RequestOutcome.CANCELLED,
    },
    status=True,
)

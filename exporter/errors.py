"""What can go wrong, as a tree; each leaf says where the mistake is made and who may catch it.

ShardwatchError
├── SettingsError        the configuration is refused whole; lists every problem (cli, app catch it)
├── ListenError          the listening address cannot be bound (cli catches it)
├── OutputError          standard output cannot be written (cli catches it)
│   └── ReaderGoneError  nobody reads it any more: no error for the user
├── ThreadLimitError     the kernel allows no more threads (cli catches it)
├── SourceError          one source could not be read this time (poller catches it, nobody else)
│   ├── EndpointError    the HTTP exchange with an engine failed
│   ├── PageError        the exchange succeeded, the response is not one we can use
│   └── DriverError      the GPU driver, or the worker process that talks to it, failed
├── CatalogError         two metrics collide or a row is malformed (a bug: raised at import)
└── QueryError           a query uses what no metric has (a bug: raised while generating)
"""

from __future__ import annotations

from msgspec import Struct


class ShardwatchError(Exception):
    """The root: anything raised on purpose."""


class Problem(Struct, frozen=True):
    """One problem of a configuration: ``path`` is dotted (``engines[2].url``), ``line`` counts from 1."""

    path: str
    message: str
    line: int | None = None

    def __str__(self) -> str:
        """Return the problem as one line: where, then what."""
        where = f"line {self.line}: " if self.line is not None else ""
        return f"{where}{self.path}: {self.message}" if self.path else f"{where}{self.message}"


class SettingsError(ShardwatchError):
    """A configuration is invalid; ``problems`` has every reason at once."""

    def __init__(self, problems: list[Problem], origin: str = "configuration") -> None:
        self.problems = problems
        self.origin = origin
        noun = "problem" if len(problems) == 1 else "problems"
        lines = "".join(f"\n  {problem}" for problem in problems)
        super().__init__(f"{origin}: {len(problems)} {noun}{lines}")


class ListenError(ShardwatchError):
    """The listening address is in use, privileged or malformed."""


class OutputError(ShardwatchError):
    """Standard output is closed, its disk is full, or its reader is gone."""


class ReaderGoneError(OutputError):
    """The reader of standard output ended first, as ``head`` does."""


class ThreadLimitError(ShardwatchError, RuntimeError):
    """The kernel allows no more threads: of this process, its user, or its cgroup; or no memory for their stacks."""


class SourceError(ShardwatchError):
    """A source could not be read; ``reason`` is a short closed word that becomes a label value.

    The message is for the log and must never carry a secret, a body, or a URL's query.
    """

    def __init__(self, reason: str, message: str = "") -> None:
        self.reason = reason
        super().__init__(message or reason)


class EndpointError(SourceError):
    """An HTTP exchange failed: refused, timeout, dns, tls, http_503, too_large, redirect, protocol, ….

    ``detail`` is the figure or name that belongs to the reason, None where there is none: the seconds of a deadline,
    the bytes of a limit, a status, the host of a look-up, the origin that a redirect names, the files of credentials.
    """

    def __init__(self, reason: str, message: str = "", *, detail: float | str | None = None) -> None:
        self.detail = detail
        super().__init__(reason, message)


class PageError(SourceError):
    """A response is empty, not metrics, has too many lines, or is of no known engine."""


class DriverError(SourceError):
    """The driver failed: library, driver, mismatch, lost, reset_required, hung, …."""


class CatalogError(ShardwatchError):
    """The catalogue contradicts itself; raised at import, so it cannot ship."""


class QueryError(ShardwatchError):
    """A query uses a label that its metric lacks, or a join that cannot match; raised where it is written."""

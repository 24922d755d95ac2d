"""What to say about a word that is not known: the word that was probably meant, without repeating a secret."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

_MAX_LENGTH = 40  # characters; difflib is quadratic, and no key is longer
_CUTOFF = 0.7  # difflib's own 0.6 takes "prices" for "series"
_SHORT, _SHORT_CUTOFF = 4, 0.6  # one error in a word of three letters leaves 0.67
_MIN_PREFIX = 3
_FILE_OF: Mapping[str, str] = {  # what people write secrets under → the key that takes a file instead
    **dict.fromkeys(("token", "bearer_token", "bearer", "api_key", "apikey", "auth_token"), "bearer_token_file"),
    **dict.fromkeys(("authorization", "credentials", "secret", "headers"), "bearer_token_file"),
    **dict.fromkeys(("password", "passwd", "pass"), "password_file"),
    **dict.fromkeys(("key", "private_key", "client_key", "key_pem"), "key_file"),
}
_AMBIGUOUS = ("key", "headers")  # secrets in some places only


def nearest(word: str, known: Iterable[str], aliases: Mapping[str, str] | None = None) -> str | None:
    """Return the known word that was probably meant, None if none resembles it.

    ``aliases`` maps other words for the same thing to a known word.
    """
    if len(word) > _MAX_LENGTH:
        return None
    import difflib  # noqa: PLC0415 - only a mistake needs it

    names = {_fold(name): name for name in known}
    folded = _fold(word)
    if folded in names:
        return names[folded]
    if aliases and folded in aliases:
        return aliases[folded]
    shared = [name for name in names if _is_prefix(folded, name) or _is_prefix(name, folded)]
    if shared:
        return names[min(shared, key=lambda name: abs(len(name) - len(folded)))]
    cutoff = _SHORT_CUTOFF if len(folded) <= _SHORT else _CUTOFF
    close = difflib.get_close_matches(folded, names, n=1, cutoff=cutoff)
    return names[close[0]] if close else None


def did_you_mean(word: str, known: Collection[str], verdict: str, aliases: Mapping[str, str] | None = None) -> str:
    """Return ``verdict`` with the nearest known word, or with all of them; never with the word itself."""
    meant = nearest(word, known, aliases)
    return f"{verdict}; did you mean {meant}?" if meant else f"{verdict}; expected one of: {', '.join(known)}"


def unknown_key(name: str, known: Collection[str], aliases: Mapping[str, str], files: Mapping[str, str]) -> str:
    """Return the message for a key that does not exist.

    ``files`` maps words under which secrets are written to the key that takes the name of a file instead.
    """
    folded = _fold(name)
    if folded == "<<":
        return "merge keys are not supported; write the keys out, or use an alias for a whole value"
    target = {**_FILE_OF, **files}.get(folded)
    if target == "password_file" and "basic_auth" in known:
        known, target = (*known, "basic_auth.password_file"), "basic_auth.password_file"
    if folded not in known and target in known:
        return f"secrets are not written into a configuration; put it into a file and name the file in {target}"
    if folded not in known and target and folded not in _AMBIGUOUS:
        return "secrets are not written into a configuration; keys that end in _file name the file that holds one"
    return did_you_mean(name, known, "unknown key", aliases)


def may_be_shown(name: str, known: Collection[str], aliases: Mapping[str, str], files: Mapping[str, str]) -> bool:
    """Return whether an unknown key is so close to a word of ours that it cannot be a misplaced secret."""
    folded = _fold(name)
    if folded == "<<" or folded in _FILE_OF or folded in files or folded in aliases:
        return True
    meant = nearest(name, known)
    return meant is not None and abs(len(meant) - len(name)) <= _MIN_PREFIX


def _is_prefix(short: str, long: str) -> bool:
    return len(short) >= _MIN_PREFIX and long.startswith(short)


def _fold(word: str) -> str:
    return word.lower().replace("-", "_")

"""Answers whose head or end is odd, served by ``malicious_server.MaliciousServer``: interim answers, surplus, members, framing.

Import this to have them; a function or an entry each, its name is the path.
"""

from __future__ import annotations

import gzip
from functools import partial

from tests.support.malicious_pages import PAGE, bomb
from tests.support.malicious_server import FAULTS, Peer, answer, fault, head, send

HINTS = b"HTTP/1.1 103 Early Hints\r\nLink: </style.css>; rel=preload\r\n\r\n"
PROCESSING = b"HTTP/1.1 102 Processing\r\n\r\n"
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
TOKENS = b'vllm:generation_tokens_total{engine="0"} 12345\n'
CUT = b'vllm:generation_tokens_total{engine="0"} 123'
LATER = b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nfalse\n"
THIRDS = [PAGE[:9000], PAGE[9000:20000], PAGE[20000:]]
MEMBERS = b"".join(gzip.compress(part) for part in THIRDS)
GZIP = b"Content-Encoding: gzip"
CHUNKED = b"Transfer-Encoding: chunked"
CHUNKS = b"%x\r\n" % len(PAGE) + PAGE + b"\r\n0\r\n\r\n"

# Sent at once, whatever was asked; then the connection is closed.
ANSWERS = {
    "switches": b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: h2c\r\n\r\n" + answer(PAGE),
    "many_interim": PROCESSING * 100 + answer(PAGE),
    "endless_hint": b"HTTP/1.1 103 Early Hints\r\n" + b"Link: <a>\r\n" * 100 + b"\r\n" + answer(PAGE),
    "interim_and_no_more": HINTS,
    "cut_number": head(length=len(CUT)) + TOKENS,
    "cut_number_then_closed": head(b"Connection: close", length=len(CUT)) + TOKENS,
    "cut_after_the_point": head(length=len(b"x 1.")) + b"x 1.5\n",
    "cut_comment": head(length=9) + b"x 1\n# HELP y is cut\ny 2\n",
    "no_end_and_cut": b"HTTP/1.0 200 OK\r\n\r\n" + CUT,
    "no_last_newline": answer(PAGE.rstrip(b"\n")),
    "chunked_without_newline": head(CHUNKED) + b"3\r\nx 1\r\n0\r\n\r\n",
    "gzip_without_newline": answer(gzip.compress(b"x 1"), GZIP),
    "many_members": answer(b"".join(gzip.compress(b"x %d\n" % i) for i in range(128)), GZIP),
    "empty_members": answer(gzip.compress(b"") + MEMBERS + gzip.compress(b""), GZIP),
    "members_without_end": answer(gzip.compress(b"") * 50_000, GZIP),
    "second_member_cut": answer(MEMBERS[:-9], GZIP),
    "second_member_broken": answer(MEMBERS[:-8] + bytes(8), GZIP),
    "junk_after_members": answer(MEMBERS + b"junk" * 20, GZIP),
    "zeros_after_members": answer(MEMBERS + bytes(20), GZIP),
    "two_codings": answer(PAGE, b"Content-Encoding: identity", GZIP),
}
FAULTS |= {name: partial(send, data=data) for name, data in ANSWERS.items()}


@fault
def second_member_bomb(peer: Peer) -> None:
    peer.reply(gzip.compress(PAGE) + bomb(), GZIP)


@fault
def members_in_pieces(peer: Peer) -> None:
    """Two members in chunks of one byte around their seam and of seven elsewhere."""
    peer.keep = True
    seam = len(gzip.compress(THIRDS[0]))
    cuts = [*range(0, seam - 5, 7), *range(seam - 5, seam + 15), *range(seam + 15, len(MEMBERS), 7), len(MEMBERS)]
    pieces = [MEMBERS[start:end] for start, end in zip(cuts, cuts[1:], strict=False)]
    body = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces)
    peer.raw(head(GZIP, CHUNKED), body, b"0\r\n\r\n")


@fault
def after_hints(peer: Peer) -> None:
    peer.keep = True
    peer.raw(HINTS, PROCESSING, CONTINUE, answer(PAGE))


@fault
def hints_then_silence(peer: Peer) -> None:
    peer.raw(HINTS)
    peer.silence()


@fault
def drip_hints(peer: Peer) -> None:
    peer.drip(HINTS * 7)
    peer.silence()


@fault
def cut_number_kept(peer: Peer) -> None:
    peer.keep = True
    peer.raw(head(length=len(CUT)), TOKENS)


@fault
def cut_number_late(peer: Peer) -> None:
    """The rest comes with the next segment."""
    peer.keep = True
    peer.raw(head(length=len(CUT)), CUT)
    peer.server.ending.wait(0.002)
    peer.raw(TOKENS[len(CUT) :])


@fault
def whole_number_kept(peer: Peer) -> None:
    peer.keep = True
    peer.reply(CUT)


@fault
def surplus(peer: Peer) -> None:
    """What looks like the answer to the next request follows in the same segment."""
    peer.keep = True
    peer.raw(answer(b"x 1\n") + LATER)


@fault
def surplus_chunked(peer: Peer) -> None:
    peer.keep = True
    peer.raw(head(CHUNKED), b"4\r\nx 1\n\r\n0\r\n\r\n", LATER)


@fault
def surplus_gzip(peer: Peer) -> None:
    peer.keep = True
    peer.raw(answer(gzip.compress(b"x 1"), GZIP), LATER)


@fault
def surplus_redirect(peer: Peer) -> None:
    peer.keep = True
    peer.raw(answer(b"", b"Location: /good", status=b"302 Found") + LATER)


@fault
def surplus_large(peer: Peer) -> None:
    """Over TLS all of this is one record: what is not asked for stays decrypted where no poll of the socket sees it."""
    peer.keep = True
    asked = answer(b"x 1\n" * 500)
    peer.raw(asked + bytes(8192 - len(asked)) + LATER)  # a reader takes 8 KiB at once


@fault
def old_and_chunked(peer: Peer) -> None:
    """Chunks are unknown to HTTP/1.0, so nobody knows where such an answer ends for the peer."""
    peer.keep = True
    peer.raw(head(b"Connection: keep-alive", CHUNKED).replace(b"/1.1", b"/1.0", 1), CHUNKS)


@fault
def keeps_and_closes(peer: Peer) -> None:
    peer.keep = True
    peer.raw(head(b"Connection: keep-alive, close", length=len(PAGE)).replace(b"/1.1", b"/1.0", 1), PAGE)

"""The faults that ``malicious_server.MaliciousServer`` serves: a function each, its name is the path.  Import this to have them."""

from __future__ import annotations

import gzip
import zlib
from functools import partial

from tests.support.malicious_server import FAULTS, STEP, Peer, answer, fault, head, send

LINES = [
    b'# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running{engine="0",model_name="m"} 3.0\n',
    *(b'vllm:e2e_request_latency_seconds_bucket{engine="0",le="%d.0"} %d\n' % (i, i) for i in range(600)),
]
PAGE = b"".join(LINES)
BLOCK = b"x_total 1\n" * 6400
PACKED = gzip.compress(PAGE)

# Sent at once, whatever was asked; then the connection is closed.
ANSWERS = {
    "good_until_close": b"HTTP/1.0 200 OK\r\n\r\n" + PAGE,
    "bad_chunk_end": head(b"Transfer-Encoding: chunked") + b"3\r\nabcdef\r\n0\r\n\r\n",
    "cut_in_chunk": head(b"Transfer-Encoding: chunked") + b"1000\r\nabc",
    "cut_before_last_chunk": head(b"Transfer-Encoding: chunked") + b"3\r\nabc\r\n",
    "other_transfer_coding": head(b"Transfer-Encoding: gzip, chunked") + PACKED,
    "chunked_with_length": head(b"Transfer-Encoding: chunked", length=5) + b"3\r\nabc\r\n0\r\n\r\n",
    "many_fields": answer(PAGE, *(b"X-%d: 1" % i for i in range(70))),
    "cut_in_head": b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nX-Cut",
    "cut_between_fields": b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n",
    "malformed_field": answer(PAGE, b"this is no field"),
    "folded_field": answer(PAGE, b"X-A: 1\r\n continued"),
    "gzip_cut": answer(PACKED[: len(PACKED) // 2], b"Content-Encoding: gzip"),
    "gzip_without_checksum": answer(PACKED[:-3], b"Content-Encoding: gzip"),
    "gzip_wrong_checksum": answer(PACKED[:-8] + bytes(8), b"Content-Encoding: gzip"),
    "gzip_lie": answer(PAGE, b"Content-Encoding: gzip"),
    "gzip_trailing": answer(PACKED + b"junk" * 20, b"Content-Encoding: gzip"),
    "gzip_empty": answer(gzip.compress(b""), b"Content-Encoding: gzip"),
    "unknown_coding": answer(PAGE, b"Content-Encoding: br"),
    "twice_gzip": answer(gzip.compress(PACKED), b"Content-Encoding: gzip, gzip"),
    "length_short": head(length=2 * len(PAGE)) + PAGE,
    "length_negative": head(b"Content-Length: -5") + PAGE,
    "length_two": head(b"Content-Length: 5", length=len(PAGE)) + PAGE,
    "length_words": head(b"Content-Length: 1_0") + PAGE,
    "length_huge": head(b"Content-Length: " + b"9" * 4000) + PAGE,
    "odd_status": answer(b"", status=b"599 Made Up"),
    "no_status": b"HTTP/1.1 xyz What\r\n\r\n",
    "redirect_nowhere": answer(b"", status=b"302 Found"),
    "status_401": answer(b"canary", b"WWW-Authenticate: Basic", status=b"401 Unauthorized"),
    "status_404": answer(b"canary", status=b"404 Not Found"),
    "status_500": answer(b"canary " * 1000, status=b"500 Internal Server Error"),
    "status_204": b"HTTP/1.1 204 No Content\r\n\r\n",
    "html": b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 12\r\n\r\n<html>login<",
    "empty": answer(b""),
    "empty_until_close": b"HTTP/1.1 200 OK\r\n\r\n",
}
FAULTS |= {name: partial(send, data=data) for name, data in ANSWERS.items()}


@fault
def good(peer: Peer) -> None:
    peer.keep = True
    peer.reply(PAGE)


@fault
def good_chunked(peer: Peer) -> None:
    peer.keep = True
    peer.raw(head(b"Transfer-Encoding: chunked"))
    for start in range(0, len(PAGE), 5000):
        piece = PAGE[start : start + 5000]
        peer.raw(b"%X;ext=1\r\n" % len(piece), piece, b"\r\n")
    peer.raw(b"0\r\nX-Trailer: 1\r\n\r\n")


@fault
def good_gzip(peer: Peer) -> None:
    peer.keep = True
    peer.reply(gzip.compress(PAGE), b"Content-Encoding: gzip")


@fault
def good_after_continue(peer: Peer) -> None:
    peer.raw(b"HTTP/1.1 100 Continue\r\n\r\n")
    peer.reply(PAGE)


LARGE_PAGE = PAGE * (3 * 1024 * 1024 // len(PAGE))


@fault
def good_large(peer: Peer) -> None:
    peer.keep = True
    peer.reply(LARGE_PAGE)


@fault
def good_large_gzip(peer: Peer) -> None:
    peer.keep = True
    peer.reply(gzip.compress(LARGE_PAGE, 1), b"Content-Encoding: gzip")


@fault
def drip_after_large(peer: Peer) -> None:
    peer.raw(head(length=2 * len(LARGE_PAGE)), LARGE_PAGE)
    peer.silence()


@fault
def silent(peer: Peer) -> None:
    peer.silence()


@fault
def drip_head(peer: Peer) -> None:
    peer.drip(head(length=len(PAGE)) + PAGE)


@fault
def drip_body(peer: Peer) -> None:
    peer.raw(head(length=len(PAGE)))
    peer.drip(PAGE)


@fault
def drip_chunks(peer: Peer) -> None:
    peer.raw(head(b"Transfer-Encoding: chunked"))
    while not peer.server.ending.wait(STEP):
        peer.raw(b"1\r\na\r\n")


@fault
def drip_trailers(peer: Peer) -> None:
    peer.raw(head(b"Transfer-Encoding: chunked"), b"1\r\na\r\n0\r\n")
    peer.drip(b"X-Late: 1\r\n" * 100)


@fault
def drip_gzip(peer: Peer) -> None:
    packed = gzip.compress(PAGE)
    peer.raw(head(b"Content-Encoding: gzip", length=len(packed)))
    peer.drip(packed)


@fault
def late(peer: Peer) -> None:
    peer.server.ending.wait(3)
    peer.reply(PAGE)


@fault
def endless_body(peer: Peer) -> None:
    peer.raw(head())
    peer.flood(BLOCK)


@fault
def endless_chunks(peer: Peer) -> None:
    peer.raw(head(b"Transfer-Encoding: chunked"))
    peer.flood(b"%x\r\n" % len(BLOCK) + BLOCK + b"\r\n")


@fault
def tiny_chunks(peer: Peer) -> None:
    peer.raw(head(b"Transfer-Encoding: chunked"))
    peer.flood(b"2\r\na \r\n" * 8192)


@fault
def huge_chunk(peer: Peer) -> None:
    peer.raw(head(b"Transfer-Encoding: chunked"), b"FFFFFFFFFF\r\n", BLOCK)
    peer.silence()


@fault
def negative_chunk(peer: Peer) -> None:
    peer.raw(head(b"Transfer-Encoding: chunked"), b"-1\r\n")
    peer.flood(BLOCK)


@fault
def endless_chunk_line(peer: Peer) -> None:
    peer.raw(head(b"Transfer-Encoding: chunked"), b"5;")
    peer.flood(b"a" * 4096)


@fault
def endless_trailers(peer: Peer) -> None:
    peer.raw(head(b"Transfer-Encoding: chunked"), b"1\r\na\r\n0\r\n")
    peer.flood(b"X-More: 1\r\n" * 100)


@fault
def endless_head(peer: Peer) -> None:
    peer.raw(b"HTTP/1.1 200 OK\r\n")
    peer.flood(b"X-Pad: " + b"a" * 500 + b"\r\n")


@fault
def huge_head_line(peer: Peer) -> None:
    peer.raw(b"HTTP/1.1 200 OK\r\nX-Big: ")
    peer.flood(b"a" * 65536)


@fault
def huge_status_line(peer: Peer) -> None:
    peer.raw(b"HTTP/1.1 200 ")
    peer.flood(b"a" * 65536)


@fault
def endless_continue(peer: Peer) -> None:
    peer.flood(b"HTTP/1.1 100 Continue\r\n\r\n" * 100)


@fault
def no_answer(peer: Peer) -> None:
    pass


@fault
def big_page(peer: Peer) -> None:
    peer.raw(head(length=256 << 20))
    peer.flood(BLOCK)


BOMB: list[bytes] = []


def bomb() -> bytes:
    """About 1 MiB of gzip that stands for 1 GiB.  Its checksum is wrong: nobody should come as far."""
    if not BOMB:
        packer = zlib.compressobj(9, zlib.DEFLATED, -15)
        segment = packer.compress(b"a 1\n" * (1 << 20)) + packer.flush(zlib.Z_FULL_FLUSH)
        BOMB.append(b"\x1f\x8b\x08\0\0\0\0\0\0\xff" + segment * 256 + b"\x03\0" + bytes(8))
    return BOMB[0]


@fault
def endless_gzip(peer: Peer) -> None:
    """Empty blocks without end: much on the wire, nothing inflated."""
    peer.raw(head(b"Content-Encoding: gzip"), bomb()[:10])
    peer.flood(b"\0\0\0\xff\xff" * 8192)


@fault
def gzip_bomb(peer: Peer) -> None:
    peer.reply(bomb(), b"Content-Encoding: gzip")


@fault
def gzip_trailing_later(peer: Peer) -> None:
    packed = gzip.compress(PAGE)
    peer.raw(head(b"Content-Encoding: gzip", b"Transfer-Encoding: chunked"))
    peer.raw(b"%x\r\n" % len(packed), packed, b"\r\n4\r\njunk\r\n0\r\n\r\n")


@fault
def length_surplus(peer: Peer) -> None:
    peer.keep = True
    peer.raw(head(length=len(PAGE)), PAGE, b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nfalse")


@fault
def reset_in_body(peer: Peer) -> None:
    peer.raw(head(length=len(PAGE)), PAGE[:5000])
    peer.server.ending.wait(0.05)
    peer.reset()


@fault
def not_http(peer: Peer) -> None:
    peer.raw(b"SSH-2.0-OpenSSH_9.2\r\n")
    peer.silence()


@fault
def redirect_same(peer: Peer) -> None:
    peer.keep = True
    peer.redirect("/good")


@fault
def redirect_with_body(peer: Peer) -> None:
    """The body comes late, and looks like the answer to the next request."""
    peer.keep = True
    body = answer(b"false")
    peer.raw(head(b"Location: good", status=b"302 Found", length=len(body)))
    peer.server.ending.wait(0.1)
    peer.raw(body)


@fault
def redirect_port(peer: Peer) -> None:
    peer.redirect(f"http://{peer.server.host}:{peer.server.state['other']}/good")


@fault
def redirect_host(peer: Peer) -> None:
    peer.redirect(f"http://127.0.0.2:{peer.server.port}/good")


@fault
def redirect_no_scheme(peer: Peer) -> None:
    peer.redirect(f"//127.0.0.2:{peer.server.port}/good")


@fault
def redirect_scheme(peer: Peer) -> None:
    peer.redirect(f"https://{peer.server.host}:{peer.server.port}/good")


@fault
def redirect_file(peer: Peer) -> None:
    peer.redirect("file:///etc/passwd")


@fault
def redirect_userinfo(peer: Peer) -> None:
    peer.redirect(f"http://user:canary@{peer.server.host}:{peer.server.port}/good")


@fault
def redirect_broken(peer: Peer) -> None:
    peer.redirect("http://[::1/good")


@fault
def redirect_loop(peer: Peer) -> None:
    peer.keep = True
    peer.redirect("/redirect_loop")


@fault
def once_a_connection(peer: Peer) -> None:
    """Promise to keep the connection, then close it."""
    peer.reply(PAGE)


@fault
def dies_at_the_second(peer: Peer) -> None:
    """Keep the connection open until the next request comes, then close it without an answer."""
    if "answered" in peer.__dict__:
        return
    peer.__dict__["answered"] = True
    peer.keep = True
    peer.reply(PAGE)


@fault
def resets_the_second(peer: Peer) -> None:
    if "answered" in peer.__dict__:
        peer.reset()
        return
    peer.__dict__["answered"] = True
    peer.keep = True
    peer.reply(PAGE)


@fault
def flap(peer: Peer) -> None:
    peer.server.state["flap"] = peer.server.state.get("flap", 0) + 1
    if peer.server.state["flap"] % 2 == 0:
        peer.reply(PAGE)

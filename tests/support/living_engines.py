"""Engines that live: pages whose counters grow, and servers that give them until they turn hostile or odd.

Import this and ``MaliciousServer`` serves them: ``living``, ``closing``, ``authorized``, ``turned``, ``explosion``, ``odd_…``.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import tests.support.malicious_pages  # noqa: F401 - whose faults are served by name
from tests.support.malicious_server import FAULTS, Peer, fault


def living_page(
    seconds: float,
    *,
    model: str = "m",
    rank: str = "0",
    edges: tuple[float, ...] = (0.1, 1.0, 10.0),
    prefix: str = "vllm:",
    rate: float = 1000.0,
) -> bytes:
    """The page of an engine that generates ``rate`` tokens a second, ``seconds`` after its start."""
    labels = f'engine="{rank}",model_name="{model}"'
    requests = int(rate / 100 * seconds)
    numbers = {
        "num_requests_running": 3.0,
        "num_requests_waiting": 1.0,
        "kv_cache_usage_perc": 0.5,
        "generation_tokens_total": int(rate * seconds),
        "prompt_tokens_total": int(5 * rate * seconds),
        "prefix_cache_queries_total": int(5 * rate * seconds),
        "prefix_cache_hits_total": int(3 * rate * seconds),
    }
    lines = [f"{prefix}{name}{{{labels}}} {number}" for name, number in numbers.items()]
    lines.append(f'{prefix}request_success_total{{{labels},finished_reason="stop"}} {requests}')
    family = f"{prefix}time_to_first_token_seconds"
    share = [(index + 1) / (len(edges) + 1) for index in range(len(edges))] + [1.0]
    for edge, part in zip([*map(str, edges), "+Inf"], share, strict=True):
        lines.append(f'{family}_bucket{{{labels},le="{edge}"}} {int(requests * part)}')
    lines += [f"{family}_sum{{{labels}}} {requests * 0.3}", f"{family}_count{{{labels}}} {requests}"]
    return ("\n".join(lines) + "\n").encode()


STARTED = time.monotonic()


def living(peer: Peer) -> None:
    """A good page whose counters grow with the time."""
    peer.keep = True
    peer.reply(living_page(time.monotonic() - STARTED))


def closing(peer: Peer) -> None:
    """A good page, and then the connection is closed although it was to be kept."""
    peer.reply(living_page(time.monotonic() - STARTED))


FAULTS["living"] = living
FAULTS["closing"] = closing


@fault
def authorized(peer: Peer) -> None:
    """A good page for whoever brings a token, which is remembered."""
    peer.server.state[f"token {b'Bearer' in peer.request}"] = 1
    if b"\r\nAuthorization: Bearer " in peer.request:
        living(peer)
    else:
        FAULTS["status_401"](peer)


@fault
def turned(peer: Peer) -> None:
    """``/turned/NAME/FAULT`` is a living engine until ``state["turned"]`` or ``state[NAME]`` is set, then it is FAULT."""
    _, _, name, fault = peer.path.partition("?")[0].split("/")
    state = peer.server.state
    if fault not in FAULTS:  # the version and the model, which are asked below the same path
        FAULTS["status_404"](peer)
    elif state.get("turned") or state.get(name):
        FAULTS[fault](peer)
    else:
        living(peer)


@fault
def explosion(peer: Peer) -> None:
    """50,000 series that nobody has seen before, behind a good page."""
    peer.server.state["explosions"] = number = peer.server.state.get("explosions", 0) + 1
    new = b"".join(b'vllm:x_total{a="%d",b="%d"} 1\n' % (number, index) for index in range(50_000))
    peer.reply(living_page(time.monotonic() - STARTED) + new)


def _odd(change: Callable[[bytes], bytes]) -> Callable[[Peer], None]:
    def serve(peer: Peer) -> None:
        peer.keep = True
        peer.reply(change(living_page(time.monotonic() - STARTED)))

    return serve


# Pages that are used in part: fault → (row, what is done to a good page, reason that is counted).  Tokens are untouched.
ODD_PAGES: dict[str, tuple[str, Callable[[bytes], bytes], str]] = {
    "odd_cut": ("E22", lambda page: page[: page.index(b"prefix_cache_queries") + 9], "unreadable"),
    "odd_crlf": ("E22", lambda page: page.replace(b"\n", b"\r\n"), ""),
    "odd_line": ("E23", lambda page: page + b"this is no sample\n", "unreadable"),
    "odd_value": ("E23", lambda page: page + b'vllm:num_requests_swapped{engine="0"} twelve\n', "bad_value"),
    "odd_bytes": ("E24", lambda page: page + b'vllm:num_requests_swapped{engine="\xff\x00"} 1\n', "unreadable"),
    "odd_nan": ("E25", lambda page: page.replace(b"} 3.0\n", b"} NaN\n"), "bad_number"),
    "odd_twice": ("E26", lambda page: page + page.replace(b"} ", b"} 9"), "duplicate"),
    "odd_label": ("E27", lambda page: page + b'vllm:num_requests_swapped{a="",a=""} 1\n', "unreadable"),
    "odd_types": ("E28", lambda page: b"# TYPE vllm:generation_tokens_total histogram\n" * 9 + page, ""),
    "odd_buckets": ("E29", lambda page: page.replace(b'le="+Inf"', b'le="99"'), "no_inf_bucket"),
    "odd_stamps": ("E30", lambda page: page.replace(b"\n", b" 99999999999999\n"), ""),
    "odd_length": ("E32", lambda page: page + b'vllm:x{a="' + b"x" * 900_000 + b'"} 1\n', "long_line"),
    "odd_escapes": ("E33", lambda page: page.replace(b'"m"', b'"\\"\\\\\\n}{,="'), ""),
    "odd_exemplars": ("E34", lambda page: page.replace(b"\n", b' # {a="b"} 1 2\n') + b"# EOF\n", ""),
}
FAULTS.update({name: _odd(change) for name, (_, change, _) in ODD_PAGES.items()})

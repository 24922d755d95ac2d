"""Engine pages over HTTP for benchmarks: eight replicas whose counters move once a second.

    python -m tests.bench.engines PORT [RANKS]

The pages have the layout of a real four-rank vLLM page in multi-process mode, which four ranks have by default: no
_created series, 1,485 lines.  Values run from one recording to the next in 300 steps and begin anew, which the daemon
sees as a restart every five minutes.  Ready bytes, so that the load
generator costs little beside what is measured.
"""

from __future__ import annotations

import http.server
import pathlib
import sys
import time

CAPTURES = pathlib.Path(__file__).parent.parent / "captures"
STEPS = 300


def _recorded(number: int, ranks: int) -> list[str]:
    """Return a recorded page of four ranks; those beyond are copies of them."""
    lines = []
    for line in (CAPTURES / f"vllm-0.20.2-generated-v1-dp4-t{number}.prom").read_text().splitlines():
        lines.append(line)
        lines += [
            line.replace(f'engine="{rank % 4}"', f'engine="{rank}"')
            for rank in range(4, ranks)
            if f'engine="{rank % 4}"' in line
        ]
    return lines


def pages(ranks: int = 4) -> list[bytes]:
    """Return the page of every second; fewer ranks give fewer lines, nine about 3,100."""
    before, after = (_recorded(number, ranks) for number in (1, 2))
    drop = tuple(f'engine="{rank}"' for rank in range(ranks, 4))
    rows = [
        (old, new)
        for old, new in zip(before, after, strict=True)
        if "_created" not in old and not any(mark in old for mark in drop)
    ]
    made = []
    for step in range(STEPS):
        share = step / STEPS
        lines = []
        for old, new in rows:
            if old == new or old.startswith("#"):
                lines.append(old)
                continue
            key, _, low = old.rpartition(" ")
            high = new.rpartition(" ")[2]
            lines.append(f"{key} {float(int(float(low) + (float(high) - float(low)) * share))}")
        made.append("\n".join([*lines, ""]).encode())
    return made


class Handler(http.server.BaseHTTPRequestHandler):
    """Answers every path with this second's page."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    ready: list[bytes]

    def do_GET(self) -> None:
        if self.path.startswith("/version"):
            body = b'{"version": "0.20.2"}'
        else:
            body = self.ready[int(time.monotonic()) % STEPS]
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


class Server(http.server.ThreadingHTTPServer):
    """Says nothing of connections that end with the exporter."""

    def handle_error(self, *_: object) -> None:
        pass


def main(port: int, ranks: int = 4) -> None:
    """Serve until killed."""
    Handler.ready = pages(ranks)
    server = Server(("127.0.0.1", port), Handler)
    print(server.server_address[1], Handler.ready[0].count(b"\n"), flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))

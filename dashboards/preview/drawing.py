"""Draw dashboards: bundle the page, serve a dashboard's results to it on loopback, take its picture with Chromium."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from dashboards.preview.plan import Picture
from dashboards.preview.programs import PreviewError, program

Json = dict[str, Any]

HERE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "web")
HEAD = 40  # pixels of the page above the dashboard
HONEST = {
    "en": "rendered by the project's preview, not by Grafana",
    "zh": "由本项目的预览工具绘制，并非 Grafana",
}
_PAGE = b"""<!doctype html><html><head><meta charset="utf-8"><link rel="stylesheet" href="/bundle.css">
<style>html, body { margin: 0 !important; padding: 0 !important } html, body, #page { overflow: hidden !important; height: auto !important; font-family: Inter, "DejaVu Sans",
"Noto Sans CJK SC", sans-serif !important }</style></head><body><div id="page"></div><script>
window.monaco = {}; window.__grafana_public_path__ = '/public/';</script><script src="/bundle.js"></script></body></html>"""
_KINDS = {".js": "text/javascript", ".css": "text/css", ".json": "application/json", ".svg": "image/svg+xml"}
_SECONDS = 120


@dataclass(slots=True)
class Page:
    """The data served to the page, and the page's report."""

    drawing: bytes = b"{}"
    problems: list[str] | None = None
    files: dict[str, str] = field(default_factory=dict)

    def show(self, drawing: Json) -> None:
        """Replace the drawing to serve, and clear the report."""
        self.drawing, self.problems = json.dumps(drawing).encode(), None


def bundle(cache: str) -> str:
    """Install the locked packages and bundle the page, where its sources changed; return the bundle's directory.

    The packages are installed outside the tree, so that nothing can ship them.
    """
    program("node")
    os.makedirs(cache, exist_ok=True)
    lock = os.path.join(HERE, "package-lock.json")
    stamp = os.path.join(cache, "installed.json")
    if _read(stamp) != _read(lock):
        for name in ("package.json", "package-lock.json"):
            shutil.copy(os.path.join(HERE, name), os.path.join(cache, name))
        _run([program("npm"), "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"], cache, 900)
        shutil.copy(lock, stamp)
    modules = os.path.join(cache, "node_modules")
    _run(
        [
            os.path.join(modules, ".bin", "esbuild"), os.path.join(HERE, "src", "main.tsx"), "--bundle", "--minify",
            f"--outfile={os.path.join(cache, 'bundle.js')}", '--define:process.env.NODE_ENV="production"',
            "--loader:.ttf=empty", "--jsx=transform", "--format=iife", "--log-level=error",
        ],
        cache, 120, NODE_PATH=modules,
    )  # fmt: skip
    return cache


def _run(command: list[str], folder: str, seconds: float, **more: str) -> None:
    done = subprocess.run(
        command, cwd=folder, env=os.environ | more, capture_output=True, text=True, timeout=seconds, check=False
    )
    if done.returncode != 0:
        raise PreviewError(f"{os.path.basename(command[0])} failed: {done.stderr[-2000:] or done.stdout[-2000:]}")


def _read(path: str) -> bytes | None:
    try:
        with open(path, "rb") as file:
            return file.read()
    except FileNotFoundError:
        return None


def describe(plan: Picture, given: Json, *, language: str, theme: str, subtitle: str) -> Json:
    """Return the JSON that the page draws."""
    request = plan.requests[0]
    return {
        "title": plan.dashboard["title"], "subtitle": subtitle, "honest": HONEST[language], "language": language,
        "theme": theme, "width": plan.width, "from": request.start, "to": request.end,
        "variables": list(plan.chosen), "steps": {str(item.panel): item.step for item in plan.requests}, "panels": list(plan.panels), **given,
    }  # fmt: skip


@contextlib.contextmanager
def serving(built: str) -> Iterator[tuple[Page, str]]:
    """Serve the page on loopback; yield its data and its URL."""
    page = Page(
        files={
            "/bundle.js": os.path.join(built, "bundle.js"),
            "/bundle.css": os.path.join(built, "bundle.css"),
            "/public/": os.path.join(built, "node_modules", "@grafana", "ui", "dist", "public"),
        }
    )
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(page))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.1}, daemon=True)
    thread.start()
    try:
        yield page, f"http://127.0.0.1:{server.server_port}/"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _handler(page: Page) -> type[BaseHTTPRequestHandler]:
    class PreviewHandler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = _body(page, self.path)
            self.send_response(404 if body is None else 200)
            kind = _KINDS.get(os.path.splitext(self.path)[1], "text/html; charset=utf-8")
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body or b"")))
            self.end_headers()
            self.wfile.write(body or b"")

        def do_POST(self) -> None:
            page.problems = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Report nothing: the picture is the log."""

    return PreviewHandler


def _body(page: Page, path: str) -> bytes | None:
    if path == "/":
        return _PAGE
    if path == "/drawing.json":
        return page.drawing
    if path in page.files:
        return _read(page.files[path])
    if path.startswith("/public/") and ".." not in path:
        return _read(os.path.join(page.files["/public/"], path.removeprefix("/public/")))
    return None


def picture(page: Page, url: str, drawing: Json, target: str, *, height: int) -> None:
    """Write the picture of a drawing to a file; raise PreviewError if the page or Chromium failed."""
    page.show(drawing)
    os.makedirs(os.path.dirname(os.path.abspath(target)), exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="preview-") as profile:
        command = [
            program("chromium"), "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
            "--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage",
            f"--user-data-dir={profile}", "--hide-scrollbars", f"--window-size={drawing['width']},{height + HEAD}",
            "--virtual-time-budget=20000", f"--screenshot={os.path.abspath(target)}", url,
        ]  # fmt: skip
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=False)
        except subprocess.TimeoutExpired as error:
            raise PreviewError(f"Chromium took more than {_SECONDS} s for {target}") from error
    if page.problems is None:
        raise PreviewError(f"the page of {target} was never drawn: {done.stderr[-1500:]}")
    if page.problems:
        raise PreviewError(f"{target}: " + "\n".join(page.problems))

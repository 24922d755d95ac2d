"""Real processes with the command lines of engines whose replicas span nodes; each is one worker below its server."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

CLUSTER = "499bb75b14ced344b68ca13b562fd28dd0ee602d6ae981aabae309a1"
# Ends with its parent, which the test ends.  With a port it answers what a vLLM server with work shows.
_SERVER = """
import http.server, subprocess, sys, time
title = sys.argv[-1]
worker = subprocess.Popen([title, "600"], executable="/bin/sleep")
class Page(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        tokens = time.monotonic() * 50
        lines = (f'vllm:num_requests_running{{model_name="m"}} 3', f'vllm:num_requests_waiting{{model_name="m"}} 0',
                 f'vllm:generation_tokens_total{{model_name="m"}} {tokens}')
        self.send_response(200); self.end_headers(); self.wfile.write(("\\n".join(lines) + "\\n").encode())
    def log_message(self, *_): pass
try:
    server = http.server.HTTPServer(("127.0.0.1", 0), Page) if "--port" in sys.argv else None
    print(worker.pid, server.server_port if server else 0, flush=True)
    server.serve_forever() if server else sys.stdin.read()
finally:
    worker.kill()
"""
_RAYLET = 'exec -a "ray::RayWorkerWrapper.execute_method" sleep 600 & echo $! 0; read _; kill $!'


class Started:
    """A server, the pid of its worker, and the port of its metrics, 0 for none."""

    def __init__(self, child: subprocess.Popen[str]) -> None:
        assert child.stdout is not None
        self.child = child
        self.worker, self.port = map(int, child.stdout.readline().split())

    def end(self) -> None:
        """End the worker, and its server if it waits for that."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.worker, 9)
        self.child.kill()
        self.child.communicate()


class Engines:
    """Starts engines below a folder, in which their programs are."""

    def __init__(self, folder: Path, stack: contextlib.ExitStack) -> None:
        self.folder, self.stack = folder, stack
        (folder / "sglang").mkdir()
        for name in ("vllm", "sglang/launch_server.py"):
            (folder / name).write_text(_SERVER)
        (folder / "raylet").symlink_to("/bin/bash")

    def vllm(
        self, *flags: str, title: str = "VLLM::Worker_TP0", environment: Mapping[str, str] | None = None
    ) -> Started:
        return self._start([sys.executable, f"{self.folder}/vllm", "serve", "m", *flags, title], environment)

    def sglang(self, *flags: str) -> Started:
        script = f"{self.folder}/sglang/launch_server.py"
        return self._start([sys.executable, script, "--model-path", "m", *flags, "sglang::scheduler_TP8"])

    def ray(self) -> Started:
        worker = (
            f"--python_worker_command=python3 default_worker.py --gcs-address=10.0.0.1:6379 --cluster-id={CLUSTER}"
        )
        # Its parent ends at once, as ``ray start`` does: else what started it would be one program with its workers.
        return self._start(
            ["/bin/sh", "-c", 'exec 3<&0; "$0" -c "$1" "$2" <&3 &', f"{self.folder}/raylet", _RAYLET, worker]
        )

    def _start(self, command: Sequence[str], environment: Mapping[str, str] | None = None) -> Started:
        variables = {**os.environ, **(environment or {})}
        child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=variables)
        started = Started(child)
        self.stack.callback(started.end)
        return started


@contextlib.contextmanager
def engines(folder: Path) -> Iterator[Engines]:
    """Start engines that end with the context."""
    with contextlib.ExitStack() as stack:
        yield Engines(folder, stack)

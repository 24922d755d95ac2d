"""A Docker engine for the tests of the image, the stack and the unit.

An engine of somebody's own is used as it is, and pulls the images.  Where none answers and ``dockerd`` is installed, root
starts one below ``.cache/containers``, which may have no registry to pull from: its images are made of Debian's packages,
under the names that the files expect.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import shutil
import subprocess
from collections.abc import Iterator

from tests.support.waiting import until

ROOT = pathlib.Path(__file__).parents[2]
CACHE = ROOT / ".cache" / "containers"
COMPOSE = ROOT / "compose"


class Docker:
    """The command line of one engine.  ``own``: started by the tests, so that its images may be stand-ins."""

    def __init__(self, *, own: bool, host: str | None = None) -> None:
        self.own = own
        # The client that Debian's engine brings builds with BuildKit by itself; newer ones need a plug-in for that.
        self._program = "/usr/bin/docker" if own and os.path.exists("/usr/bin/docker") else "docker"
        self._environment = {**os.environ, "DOCKER_BUILDKIT": "1", **({"DOCKER_HOST": host} if host else {})}

    def __call__(self, *arguments: str, check: bool = True, stdin: str | None = None, **more: str) -> str:
        """Run a command of Docker; return what it prints, raise AssertionError with it if the command fails."""
        run = subprocess.run(
            [self._program, *arguments],
            env={**self._environment, **more},
            cwd=COMPOSE,
            input=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=900,
        )
        assert not check or run.returncode == 0, f"docker {' '.join(arguments)}: {run.returncode}\n{run.stdout}"
        return run.stdout.strip()

    def answers(self) -> bool:
        """Return whether an engine answers."""
        with contextlib.suppress(OSError):
            return "Server Version" in self("info", check=False)
        return False

    def has(self, image: str) -> bool:
        """Return whether the engine holds an image."""
        return bool(self("image", "ls", "--quiet", image))

    def build(self, tag: str, dockerfile: str, **arguments: str) -> None:
        """Build an image from the text of a Dockerfile, without a context."""
        values = [item for pair in arguments.items() for item in ("--build-arg", "=".join(pair))]
        self("build", "--network", "host", "--tag", tag, *values, "-", stdin=dockerfile)

    def import_root(self, root: pathlib.Path, image: str) -> None:
        """Make an image of a directory that holds a root file system."""
        with subprocess.Popen(["tar", "-C", str(root), "-c", "."], stdout=subprocess.PIPE) as archive:
            command = [self._program, "import", "-", image]
            subprocess.run(command, stdin=archive.stdout, env=self._environment, check=True, timeout=300)

    @contextlib.contextmanager
    def running(self, *arguments: str) -> Iterator[str]:
        """Run a container; yield its ID, and remove it in the end."""
        container = self("run", "--detach", *arguments)
        try:
            yield container
        finally:
            self("rm", "--force", "--volumes", container)

    def inspect(self, container: str, template: str) -> str:
        """Return a value of a container, by Go's template."""
        return self("inspect", "--format", template, container)

    def healthy(self, container: str) -> bool:
        """Return whether the health check of a container succeeds."""
        return self.inspect(container, "{{.State.Health.Status}}") == "healthy"


def missing() -> str:
    """Return why no engine can be used, "" if one can."""
    if Docker(own=False).answers():
        return ""
    if shutil.which("dockerd") is None:
        return "no Docker engine answers, and dockerd is not installed"
    return "" if os.geteuid() == 0 else "no Docker engine answers, and only root can start one"


@contextlib.contextmanager
def engine() -> Iterator[Docker]:
    """Yield the engine that answers, or one started for the tests."""
    if (docker := Docker(own=False)).answers():
        yield docker
        return
    CACHE.mkdir(parents=True, exist_ok=True)
    socket = CACHE / "docker.sock"
    docker = Docker(own=True, host=f"unix://{socket}")
    command = ["dockerd", "--data-root", f"{CACHE}/data", "--exec-root", f"{CACHE}/exec", "--pidfile", f"{CACHE}/pid"]
    with open(CACHE / "dockerd.log", "w") as log:
        process = subprocess.Popen([*command, "--host", f"unix://{socket}"], stdout=log, stderr=log)
    try:
        until(lambda: docker.answers() or process.poll() is not None, 120)
        assert process.poll() is None, (CACHE / "dockerd.log").read_text()[-2000:]
        yield docker
    finally:
        process.terminate()
        process.wait(60)

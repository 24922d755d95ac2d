"""Stand-ins for the images that the files name, made of Debian's packages: for an engine without a registry."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping

from tests.containers.engine import CACHE, Docker
from tests.support.stack_files import compose

BASE = "python:3.13.9-slim-bookworm"
IMAGE = "shardwatch:local"
SYSTEMD = "shardwatch-systemd:test"
# Debian's Prometheus lacks the OTLP receiver.
START = """#!/bin/sh
for a; do shift; [ "$a" = --web.enable-otlp-receiver ] || set -- "$@" "$a"; done
exec PROGRAM "$@"
"""
# BusyBox's wget is that of the real images' health checks.
SERVER = """
FROM BASE
RUN apt-get update && apt-get install --yes --no-install-recommends PROGRAM busybox && ln -s /bin/busybox /usr/bin/wget
RUN echo "$START" > /bin/start && chmod +x /bin/start && install -d -o 65534 -g 65534 /prometheus /alertmanager
USER AS
ENTRYPOINT ["/bin/start"]
"""
SERVERS: Mapping[str, tuple[str, str]] = {  # image: Debian's package and program, user
    "prom/prometheus": ("prometheus", "65534:65534"),
    "prom/alertmanager": ("prometheus-alertmanager", "65534:65534"),
    "victoriametrics/victoria-metrics": ("victoria-metrics", "0:0"),
}
UNIT = """
FROM BASE
RUN apt-get update && apt-get install --yes --no-install-recommends systemd procps
STOPSIGNAL SIGRTMIN+3
CMD ["/lib/systemd/systemd"]
"""


def make_images(docker: Docker) -> None:
    """Make the base image and those of the stack, as far as the engine lacks them."""
    if not docker.own:
        return  # it pulls the real ones
    if not docker.has(BASE):
        docker.import_root(_python_root(), BASE)
    for service in compose()["services"].values():
        image = service["image"]
        if (server := SERVERS.get(image.partition(":")[0])) and not docker.has(image):
            program, user = server
            start = START.replace("PROGRAM", program).replace("\n", "\\n")
            text = SERVER.replace("BASE", BASE).replace("PROGRAM", program).replace("AS", user, 1)
            docker.build(image, text.replace('"$START"', f"$'{start}'"))


def make_systemd(docker: Docker) -> None:
    """Make an image whose PID 1 is systemd."""
    docker.build(SYSTEMD, UNIT.replace("BASE", BASE))


def _python_root() -> os.PathLike[str]:
    """Return Debian's root file system, with a Python that installs packages below /usr/local, as the real image has."""
    root = CACHE / "rootfs"
    if not (root / "usr/local/bin/python").exists():
        shutil.rmtree(root, ignore_errors=True)
        packages = "--include=ca-certificates,python3,python3-venv"
        subprocess.run(["debootstrap", "--variant=minbase", packages, "trixie", str(root)], check=True, timeout=1200)
        subprocess.run(["chroot", str(root), "python3", "-m", "venv", "/usr/local"], check=True, timeout=300)
    for shared in ("/etc/pip.conf", "/etc/ssl/certs/ca-certificates.crt"):  # a mirror, and who vouches for it
        if os.path.exists(shared):
            shutil.copyfile(shared, root / shared[1:])
    return root

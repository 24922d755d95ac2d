"""The image: who it runs as, its health check, its end, and TLS with users."""

from __future__ import annotations

import re

import pytest

from tests.containers.images import IMAGE
from tests.support.waiting import until
from tests.support.web_config import USERS, make_keys

HARDENED = ("--read-only", "--cap-drop", "ALL", "--security-opt", "no-new-privileges", "--tmpfs", "/tmp")
FETCH = """
import ssl, urllib.error, urllib.request
try:
    urllib.request.urlopen("https://127.0.0.1:9853/metrics", context=ssl._create_unverified_context())
except urllib.error.HTTPError as error:
    print(error)
"""


@pytest.fixture(scope="module")
def demo(docker):
    with docker.running(*HARDENED, IMAGE, "demo") as container:
        until(lambda: docker.healthy(container), 120)
        yield container


def test_the_demo_is_healthy_without_root_capabilities_and_a_writable_root(docker, demo):
    status = docker("exec", demo, "cat", "/proc/1/status")
    fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    assert fields["Uid"].split()[0] == fields["Gid"].split()[0] == "65532"
    assert {int(fields[name], 16) for name in ("CapEff", "CapPrm", "CapBnd")} == {0}
    assert "Read-only file system" in docker("exec", "--user", "0", demo, "touch", "/opt/shardwatch/x", check=False)


def test_check_names_a_healthy_node_in_the_container(docker, demo):
    until(lambda: "OK" in docker("exec", demo, "shardwatch", "check", check=False))


def test_docker_stop_ends_it_cleanly(docker):
    with docker.running(*HARDENED, IMAGE, "demo") as container:
        until(lambda: docker.healthy(container), 120)
        docker("stop", "--time", "30", container)
        assert docker.inspect(container, "{{.State.ExitCode}} {{.State.OOMKilled}}") == "0 false"
        assert "event=stopped" in docker("logs", container)


def test_without_gpu_and_engines_it_serves_and_says_so(docker):
    with docker.running(*HARDENED, IMAGE) as container:
        until(lambda: docker.healthy(container), 120)
        assert re.search(r"source=driver state=down reason=library hint=.*enabled: false", docker("logs", container))


def test_its_health_check_succeeds_under_tls_and_users(docker, tmp_path):
    """The check asks in plain HTTP and as nobody: an answer that refuses it tells that the daemon serves."""
    make_keys(tmp_path)
    (tmp_path / "web.yml").write_text(f"tls_server_config: {{cert_file: server.pem, key_file: server.key}}\n{USERS}")
    (tmp_path / "shardwatch.yaml").write_text("web_config_file: /etc/shardwatch/web.yml\n")
    for path in (tmp_path, *tmp_path.iterdir()):
        path.chmod(0o755)
    mount = ("--volume", f"{tmp_path}:/etc/shardwatch:ro")
    with docker.running(*HARDENED, *mount, IMAGE, "run", "--config", "/etc/shardwatch/shardwatch.yaml") as container:
        until(lambda: docker.healthy(container), 120)
        assert "unauthorized" in docker("exec", container, "python", "-c", FETCH).lower()

"""Which hosts are this machine, without asking a name server."""

from __future__ import annotations

import socket

import pytest

from exporter.http.client.deadline import Deadline
from exporter.http.client.resolver import Resolver
from exporter.sources.own_host import LocalHost, local_addresses, local_hostname, read_hosts_file
from tests.support.builders import Clock

HOSTS = """# 10.0.0.9 commented
127.0.0.1 localhost
127.0.1.1 Node-7.example.org node-7   # Debian writes its own name so
10.0.0.9 chat
10.0.0.8 other
::1 ip6-localhost
garbage
"""


def address(text):
    return (socket.AF_INET6, (text, 0, 0, 0)) if ":" in text else (socket.AF_INET, (text, 0))


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def addresses():
    return {"10.0.0.9", "fd00::9"}


@pytest.fixture
def known():
    return {}


@pytest.fixture
def is_local(clock, addresses, known):
    return LocalHost(
        addresses=lambda: frozenset(addresses),
        name=lambda: "vm",
        hosts=lambda: HOSTS,
        known=lambda host: known.get(host, ()),
        clock=clock,
    )


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "::1", "localhost", "0.0.0.0", "10.0.0.9", "fd00::9", "vm", "VM.", "node-7.example.org",
             "node-7", "chat", "ip6-localhost"]
)  # fmt: skip
def test_addresses_the_host_name_and_what_the_hosts_file_says_are_this_machine(is_local, host):
    assert is_local(host)


@pytest.mark.parametrize("host", ["10.0.0.8", "other", "commented", "vm.example.org", "", "127.0.0.2", "garbage"])
def test_all_else_is_not_and_another_loopback_address_is_a_place_of_its_own(is_local, host):
    assert not is_local(host)


def test_an_address_that_the_machine_gave_up_is_its_own_no_longer(is_local, clock, addresses):
    assert is_local("10.0.0.9") and is_local("chat")
    addresses.remove("10.0.0.9")
    assert is_local("10.0.0.9"), "the addresses are not read at every question"
    clock.tick(10.0)
    assert not is_local("10.0.0.9") and not is_local("chat")
    addresses.add("10.0.0.7")
    clock.tick(10.0)
    assert is_local("10.0.0.7")


def test_a_name_is_this_machine_s_once_it_is_known_to_lead_nowhere_else(is_local, known):
    assert not is_local("chat.example")
    known["chat.example"] = [address("10.0.0.9"), address("fd00::9%eth0")]
    assert is_local("chat.example")
    known.clear()
    assert is_local("chat.example"), "the resolver forgets a name while nobody answers there"
    known["chat.example"] = [address("10.0.0.9"), address("10.0.0.8")]
    assert not is_local("chat.example"), "a name of several machines is not this one's"


def test_names_are_cached_for_a_while_and_not_without_bound(is_local, known):
    for number in range(600):
        known[f"n{number}"] = [address("10.0.0.9")]
        assert is_local(f"n{number}")
    known.clear()
    assert not is_local("n0") and is_local("n599")


def test_the_shared_resolver_answers_from_its_cache_without_a_query():
    asked = []

    def look_up(host):
        asked.append(host)
        return [address("10.0.0.9")]

    resolver = Resolver(look_up)
    assert resolver.cached("a.example") == () and not asked
    resolver.addresses("a.example", Deadline(5.0))
    assert resolver.cached("a.example") == (address("10.0.0.9"),)
    resolver.forget("a.example")
    assert resolver.cached("a.example") == () and asked == ["a.example"]


def test_this_machine_itself_can_be_asked():
    assert "127.0.0.1" not in local_addresses()
    assert local_hostname() == socket.gethostname().lower()
    assert read_hosts_file("/nonexistent") == ""
    assert LocalHost()(socket.gethostname())

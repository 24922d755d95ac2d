"""Users of the metrics endpoint, and who guesses passwords."""

from __future__ import annotations

import base64
import socket
import threading
import time

import bcrypt
import pytest

from exporter.http.server import basic_auth
from exporter.http.server.auth_queue import MAX_WAITING, MAX_WAITING_OF_PEER, AuthQueue
from exporter.http.server.basic_auth import MAX_USERS, Authenticator
from exporter.http.server.listener import DeferredResponse, Request
from tests.support.raw_http import PAGE, page, to_the_end
from tests.support.waiting import until
from tests.support.web_config import (
    HASH,
    USERS,
    connection_to,
    fetch,
    protected,
)


def test_only_users_with_their_password_are_answered_and_every_response_has_the_headers(tmp_path):
    headers = "http_server_config:\n  headers:\n    X-Frame-Options: deny\n"
    with protected(USERS + headers, tmp_path) as server:
        response = fetch(server, user="prometheus:right")
        assert (response.status, response.body, response.headers["X-Frame-Options"]) == (200, PAGE, "deny")
        for wrong in (None, "prometheus:wrong", "nobody:right", ":right", "prometheus:", "prometheus"):
            response = fetch(server, user=wrong)
            assert (response.status, response.headers["WWW-Authenticate"]) == (401, 'Basic realm="shardwatch"'), wrong
            assert response.headers["X-Frame-Options"] == "deny"
        assert server.errors == 0


def test_passwords_beyond_what_bcrypt_reads_are_cut_as_others_cut_them(tmp_path):
    hashed = bcrypt.hashpw(b"x" * 72, bcrypt.gensalt(4)).decode()
    with protected(f"basic_auth_users:\n  a: {hashed}\n", tmp_path) as server:
        assert fetch(server, user="a:" + "x" * 80).status == 200
        assert fetch(server, user="a:" + "x" * 71).status == 401


class SlowCheck:
    """Stands in for bcrypt: a check ends when it is released, and is right for the password ``right``."""

    def __init__(self):
        self.running = self.most = self.calls = 0
        self.release = threading.Event()

    def __call__(self, password, hashed):
        self.calls += 1
        self.running += 1
        self.most = max(self.most, self.running)
        self.release.wait(10)
        self.running -= 1
        return password == b"right"


def request(user):
    return Request(
        method="GET",
        path="/metrics",
        query="",
        headers={"authorization": "Basic " + base64.b64encode(user.encode()).decode()},
    )


def test_guessing_costs_a_verified_client_nothing(tmp_path, monkeypatch):
    check = SlowCheck()
    check.release.set()
    monkeypatch.setattr(basic_auth, "_check", check)
    with protected(USERS, tmp_path, connections=8) as server:
        assert fetch(server, user="prometheus:right").status == 200
        check.release.clear()
        statuses = []
        guesses = [
            threading.Thread(target=lambda n=n: statuses.append(fetch(server, user=f"prometheus:{n}").status))
            for n in range(7)
        ]
        for guess in guesses:
            guess.start()
        until(lambda: 429 in statuses)
        assert fetch(server, user="prometheus:right").status == 200  # while no guess is decided
        check.release.set()
        for guess in guesses:
            guess.join(10)
        assert set(statuses) == {401, 429} and check.most == 1


def test_addresses_take_turns_and_each_has_few_places():
    check = SlowCheck()
    authenticator = Authenticator(check)
    users = {"prometheus": HASH}
    answered = []

    def ask(user, peer):
        found = authenticator.authenticate(request(user), peer, users, lambda: page(request(user)))
        if isinstance(found, DeferredResponse):
            found.add_done_callback(lambda: answered.append((peer, user)))
        return found

    first = ask("prometheus:0", "a")
    until(lambda: check.running == 1)
    found = [ask(f"prometheus:{n}", "a") for n in range(1, 2 + MAX_WAITING_OF_PEER)]
    assert isinstance(first, DeferredResponse) and found[-1].status == 429
    ask("prometheus:right", "b")
    check.release.set()
    until(lambda: len(answered) == 2 + MAX_WAITING_OF_PEER)
    assert [peer for peer, _ in answered].index("b") <= 2


def test_a_verified_pair_is_removed_with_its_hash():
    check = SlowCheck()
    check.release.set()
    authenticator = Authenticator(check)
    for hashed, calls in ((HASH, 1), (HASH, 1), (HASH.replace("$04", "$05"), 2)):
        found = authenticator.authenticate(request("prometheus:right"), "a", {"prometheus": hashed}, lambda: None)
        if found is not None:
            until(lambda found=found: found.resume is not None)
        assert check.calls == calls


def test_a_name_and_a_password_do_not_run_into_each_other():
    authenticator = Authenticator()
    pairs = [("ab", "c", b"d"), ("a", "bc", b"d"), ("a", "b", b"cd"), ("", "abcd", b"")]
    assert len({authenticator._digest(*pair) for pair in pairs}) == len(pairs)


def test_who_asks_from_many_addresses_keeps_nobody_from_waiting():
    check = SlowCheck()
    failures = []
    authenticator = Authenticator(check, on_failure=lambda reason, peer: failures.append((reason, peer)))
    users = {"prometheus": HASH}
    for peer in range(MAX_WAITING - 1):
        for number in range(MAX_WAITING_OF_PEER):
            authenticator.authenticate(request(f"prometheus:{number}"), f"attacker {peer}", users, lambda: None)
    assert ("limited", "attacker 0") in failures
    honest = authenticator.authenticate(request("prometheus:right"), "honest", users, lambda: None)
    assert isinstance(honest, DeferredResponse), "somebody with more than one place lost it"
    check.release.set()
    until(lambda: honest.resume is not None)


@pytest.mark.parametrize("before", ["new", "authenticated", "failed"])
def test_guessers_from_many_addresses_lock_no_right_password_out(before):
    check = SlowCheck()
    check.release.set()
    failures = []
    authenticator = Authenticator(check, on_failure=lambda *failure: failures.append(failure), rest=lambda _: None)
    users = {"prometheus": HASH}

    def ask(user, peer, **others):
        return authenticator.authenticate(request(user), peer, {**users, **others}, lambda: None)

    if before == "authenticated":
        old = ask("old:right", "honest", old=HASH)
        until(lambda: old.resume is not None)
    elif before == "failed":
        ask("prometheus:wrong", "honest")
        until(lambda: ("wrong", "honest") in failures)
    guessers = [f"guesser {number}" for number in range(2 * MAX_WAITING)]
    for number, peer in enumerate(guessers):
        ask(f"prometheus:wrong {number}", peer)
        until(lambda peer=peer: ("wrong", peer) in failures)
    check.release.clear()
    for guess in range(3):
        for peer in guessers:
            ask(f"prometheus:{guess}", peer)
    honest = ask("prometheus:right", "honest")
    for guess in range(3):
        for peer in guessers:
            ask(f"prometheus:again {guess}", peer)
    assert honest.response is None
    check.release.set()
    until(lambda: honest.resume is not None)


def test_all_places_together_are_bounded_and_guessers_at_a_known_address_starve_nobody():
    queue = AuthQueue()
    queue.on_success("known")
    refused = 0
    for number in range(1000):
        refused += queue.add("known", f"known {number}") is not None
        refused += queue.add(f"new {number}", f"new {number}") is not None
        queue.on_failure(f"failed {number}")
    assert len(queue) <= MAX_WAITING and refused == 2000 - len(queue)
    assert [queue.pop()[0].split()[0] for _ in range(6)] == ["known", "new"] * 3
    while queue:
        queue.pop()
    with pytest.raises(IndexError):
        queue.pop()


def test_a_wrong_password_costs_the_same_for_every_name_whatever_the_cost_of_its_hash():
    costs = {}

    def check(password, hashed):
        user = password.decode()
        costs[user] = costs.get(user, 0) + 2 ** int(hashed[4:6])
        return False

    authenticator = Authenticator(check, rest=lambda _: None)
    users = {"cheap": HASH, "dear": HASH.replace("$04", "$12"), "middle": HASH.replace("$04", "$10")}
    for user in (*users, "unknown"):
        found = authenticator.authenticate(request(f"{user}:{user}"), "a", users, lambda: None)
        until(lambda found=found: found.response is not None)
    assert costs == dict.fromkeys((*users, "unknown"), 2**12)


def test_guessing_costs_a_fifth_of_a_core_at_most_and_a_right_password_no_rest():
    rests = []
    ended = threading.Event()

    def rest(seconds):
        rests.append(seconds)
        ended.set()

    authenticator = Authenticator(rest=rest)
    hashed = bcrypt.hashpw(b"right", bcrypt.gensalt(10)).decode()
    right = authenticator.authenticate(request("a:right"), "a", {"a": hashed}, lambda: None)
    until(lambda: right.resume is not None)
    for user in ("a:wrong", "unknown:right"):
        ended.clear()
        authenticator.authenticate(request(user), "a", {"a": hashed}, lambda: None)
        assert ended.wait(60)
    one_check = bcrypt_seconds(hashed)
    # Both rest for at least three checks, so that the name of a user cannot be told by the time.
    assert len(rests) == 2 and min(rests) > 3 * one_check


def bcrypt_seconds(hashed):
    """Return the least CPU time of one check."""
    seconds = []
    for _ in range(5):
        began = time.thread_time()
        bcrypt.checkpw(b"wrong", hashed.encode())
        seconds.append(time.thread_time() - began)
    return min(seconds)


def test_guessing_with_real_bcrypt_costs_a_known_user_no_scrape(tmp_path):
    hashed = bcrypt.hashpw(b"right", bcrypt.gensalt(10)).decode()
    ending = threading.Event()
    statuses = []

    def guess(number):
        guesses = 0
        while not ending.is_set():
            statuses.append(fetch(server, user=f"prometheus:{number} {guesses}").status)
            guesses += 1

    with protected(f"basic_auth_users:\n  prometheus: {hashed}\n", tmp_path) as server:
        assert fetch(server, user="prometheus:right").status == 200
        guessers = [threading.Thread(target=guess, args=(number,)) for number in range(6)]
        for thread in guessers:
            thread.start()
        try:
            until(lambda: {401, 429} <= set(statuses))
            scrapes = 0
            while scrapes < 50 or len(statuses) < 60:
                assert fetch(server, user="prometheus:right").status == 200
                scrapes += 1
        finally:
            ending.set()
            for thread in guessers:
                thread.join(60)
        assert set(statuses) == {401, 429} and server.errors == 0
        failures = server.access.authentication_failures
        assert failures["wrong"] == statuses.count(401) and failures["limited"] == statuses.count(429)


ODD = {
    "another scheme": ("Bearer x", 401),
    "no credentials": ("Basic", 401),
    "no base64": ("Basic %%%", 401),
    "no colon": ("Basic " + base64.b64encode(b"prometheus").decode(), 401),
    "a zero in the user": ("Basic " + base64.b64encode(b"prometheus\0:right").decode(), 401),
    "a zero in the password": ("Basic " + base64.b64encode(b"prometheus:right\0").decode(), 401),
    "bytes that are no UTF-8": ("Basic " + base64.b64encode(b"\xff:right").decode(), 401),
    "a password of 5 KiB": ("Basic " + base64.b64encode(b"prometheus:" + b"x" * 5000).decode(), 401),
    "a field of 9 KiB": ("Basic " + "QUFB" * 2300, 431),
    "the scheme in capitals": ("BASIC " + base64.b64encode(b"prometheus:right").decode(), 200),
    "two spaces": ("Basic  " + base64.b64encode(b"prometheus:right").decode(), 200),
}


@pytest.mark.parametrize("case", ODD)
def test_odd_credentials_are_answered_and_cost_nobody_else_anything(case, tmp_path):
    field, status = ODD[case]
    with protected(USERS, tmp_path) as server:
        with connection_to(server) as connection:
            connection.request("GET", "/metrics", headers={"Authorization": field})
            assert connection.getresponse().status == status
        assert fetch(server, user="prometheus:right").status == 200
        assert server.errors == 0


@pytest.mark.parametrize("line", [b"OPTIONS /metrics", b"CONNECT x:443", b"TRACE /"])
def test_who_is_no_user_is_not_told_which_methods_are_supported(line, tmp_path):
    right = b"Authorization: Basic " + base64.b64encode(b"prometheus:right") + b"\r\n"
    with protected(USERS, tmp_path) as server:
        for fields, status in ((b"", b"401"), (right, b"405")):
            with socket.create_connection(server.address, timeout=60) as sock:
                sock.sendall(line + b" HTTP/1.1\r\nHost: x\r\n" + fields + b"\r\n")
                assert to_the_end(sock).startswith(b"HTTP/1.1 " + status)


def test_two_authorization_fields_are_refused(tmp_path):
    right = b"Authorization: Basic " + base64.b64encode(b"prometheus:right") + b"\r\n"
    wrong = b"Authorization: Basic " + base64.b64encode(b"prometheus:wrong") + b"\r\n"
    with protected(USERS, tmp_path) as server, socket.create_connection(server.address, timeout=60) as sock:
        sock.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n" + right + wrong + b"\r\n")
        assert not to_the_end(sock).startswith(b"HTTP/1.1 200")


def test_a_user_added_beyond_what_is_remembered_is_verified_again(tmp_path):
    check = SlowCheck()
    check.release.set()
    authenticator = Authenticator(check)
    users = {f"user{number}": HASH for number in range(MAX_USERS + 1)}
    for user in users:
        found = authenticator.authenticate(request(f"{user}:right"), "a", users, lambda: None)
        until(lambda found=found: found.resume is not None)
    calls = check.calls
    assert authenticator.authenticate(request(f"user{MAX_USERS}:right"), "a", users, lambda: None) is None
    found = authenticator.authenticate(request("user0:right"), "a", users, lambda: None)
    until(lambda: found.resume is not None)
    assert check.calls == calls + 1 and len(authenticator._verified) == MAX_USERS


@pytest.mark.parametrize("path", ["/-/healthy", "/-/ready"])
def test_health_needs_no_user_where_that_is_asked_for(path, tmp_path):
    with protected(USERS, tmp_path, open_paths=("/-/healthy", "/-/ready")) as server:
        assert fetch(server, path=path).status == 200
        for other in (
            "/metrics",
            "/",
            "/api/v1/node",
            path + "/",
            path + "/../../metrics",
            "/%2d/healthy",
            "/-/reload",
        ):
            assert fetch(server, path=other).status == 401, other
        assert server.access.authentication_failures["missing"] == 7
    with protected(USERS, tmp_path) as server:
        assert fetch(server, path=path).status == 401

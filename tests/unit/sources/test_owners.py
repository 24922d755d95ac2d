"""Reading the owners of processes: once each, never another's, and bounded by whoever answers for users."""

from __future__ import annotations

import os
import shutil
import threading

import pytest

from exporter.model.owner import ProcessOwner
from exporter.sources.processes import owners as owners_module
from exporter.sources.processes.owners import OwnerReader, UserNames
from tests.support.fake_proc import FakeProc
from tests.support.processes import read_processes
from tests.support.waiting import until

NAMES = {1000: "alice", 0: "root"}


def reader(**options):
    return OwnerReader(UserNames(lambda uid: NAMES.get(uid, ""), **options))


@pytest.fixture
def node(tmp_path):
    return FakeProc(tmp_path)


def add(node, pid, *, uid=1000, cgroup="0::/system.slice/vllm.service", **options):
    node.add(pid, 1, ["python"], cgroup=cgroup, **options)
    (node.root / str(pid) / "status").write_text(f"Name:\tpython\nUmask:\t0022\nUid:\t{uid}\t0\t0\t0\n")


def owners(node, *pids, using):
    table = read_processes(pids, (), root=str(node.root), owners=using)
    return {pid: table.processes[pid].owner for pid in pids if pid in table.processes}


def test_a_process_has_its_unit_and_its_real_user(node):
    add(node, 100)
    add(node, 101, uid=4242, cgroup="0::/user.slice/user-4242.slice/session-2.scope")
    assert owners(node, 100, 101, using=reader()) == {
        100: ProcessOwner(unit="vllm.service", user="alice"),
        101: ProcessOwner(unit="session-2.scope", session=True, user="4242"),
    }


def test_an_owner_is_read_once(node):
    add(node, 100)
    using = reader()
    first = owners(node, 100, using=using)
    (node.root / "100" / "cgroup").write_text("0::/system.slice/other.service\n")
    assert owners(node, 100, using=using) == first and using.reads == 1


def test_a_reused_pid_is_another_process(node):
    add(node, 100, started=5000)
    using = reader()
    owners(node, 100, using=using)
    shutil.rmtree(node.root / "100")
    add(node, 100, started=9000, uid=0, cgroup="0::/docker/" + "a" * 64)
    assert owners(node, 100, using=using)[100] == ProcessOwner(container_id="a" * 64, user="root")


def test_a_process_that_is_replaced_while_it_is_read_has_no_owner(node):
    add(node, 100, started=5000)

    def replaced(_uid):
        shutil.rmtree(node.root / "100")
        add(node, 100, started=9000)
        return "alice"

    using = OwnerReader(UserNames(replaced))
    assert owners(node, 100, using=using)[100] == ProcessOwner()
    assert owners(node, 100, using=using)[100] == ProcessOwner(unit="vllm.service", user="alice")


def test_a_control_group_that_vanishes_leaves_the_user(node):
    add(node, 100)
    os.remove(node.root / "100" / "cgroup")
    assert owners(node, 100, using=reader())[100] == ProcessOwner(user="alice")


def test_hidepid_leaves_the_owner_of_the_directory(node):
    add(node, 100)
    for name in ("status", "cgroup"):
        os.remove(node.root / "100" / name)
    owner = owners(node, 100, using=OwnerReader(UserNames(lambda uid: f"u{uid}")))[100]
    assert owner == ProcessOwner(user=f"u{os.getuid()}")


@pytest.mark.parametrize("text", ["", "Uid:", "Uid:\n", "Uid:\tx\n", "Uid:\t" + "9" * 400 + "\n", "\0" * 9000])
def test_a_status_that_says_nothing_names_nobody_else(node, text):
    add(node, 100)
    (node.root / "100" / "status").write_text(text)
    owner = owners(node, 100, using=OwnerReader(UserNames(lambda uid: f"u{uid}")))[100]
    assert owner.user in ("", f"u{os.getuid()}")


@pytest.mark.parametrize("name", ["", "a\nb", "\x1b[31m", " x", "x" * 65])
def test_a_name_that_no_user_should_have_is_the_uid(node, name):
    add(node, 100)
    assert owners(node, 100, using=OwnerReader(UserNames(lambda _: name)))[100].user == "1000"


def test_names_that_do_not_come_delay_one_look_up_and_arrive_later(node):
    gate, asked = threading.Event(), []

    def slow(uid):
        asked.append(uid)
        assert gate.wait(30)
        return f"user-{uid}"

    using = OwnerReader(UserNames(slow, seconds=0.0))
    add(node, 100)
    add(node, 101, uid=1001)
    assert {owner.user for owner in owners(node, 100, 101, using=using).values()} == {"1000", "1001"}
    until(lambda: asked == [1000])
    gate.set()
    until(
        lambda: {owner.user for owner in owners(node, 100, 101, using=using).values()} == {"user-1000", "user-1001"}
    )


def test_what_is_kept_is_bounded(node, monkeypatch):
    monkeypatch.setattr(owners_module, "MAX_KNOWN", 8)
    using = reader()
    for pid in range(100, 130):
        add(node, pid)
        assert owners(node, pid, using=using)[pid].user == "alice"
    assert len(using._known) <= 8 and using.reads == 30


def test_nothing_of_a_command_line_or_an_environment_is_in_an_owner(node):
    add(node, 100)
    (node.root / "100" / "environ").write_bytes(b"SLURM_JOB_ID=1\0HF_TOKEN=hunter2\0")
    (node.root / "100" / "cmdline").write_bytes(b"python\0--api-key\0hunter2\0")
    assert (
        "hunter2" not in repr(owners(node, 100, using=reader()))
        and not owners(node, 100, using=reader())[100].slurm_job
    )

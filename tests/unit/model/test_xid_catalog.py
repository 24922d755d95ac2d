"""The table of XID codes: complete against NVIDIA's buckets, in closed words, and with few codes shown from the start."""

from __future__ import annotations

import re

import pytest

from exporter.model.xid_catalog import CATALOGUE, FATAL, Class, describe

# NVIDIA's catalogue, column "immediate action", codes in use.
BUCKETS = {
    ("application", "restart_application"): [
        8, 11, 13, 25, 31, 32, 39, 40, 41, 60, *range(68, 73), 75, 76, 77, 80, *range(82, 87), 88, 89, 94,
        *range(96, 106), *range(126, 136), 139,
    ],
    ("informational", "none"): [
        37, 38, 43, 44, 63, 66, 67, 92, 93, 106, 107, 108, 121, 137, 141, 152, 153, 157, 160, 161,
    ],
    ("informational", "follow_other_xid"): [45],
    ("reset_card", "reset_card"): [46, 62, 64, 95, 109, 110, 119, 120, 136, 140, 143, 155, 156, 158],
    ("reset_card", "drain_and_reset_card"): [48],
    ("reset_card", "check_nvlink_and_reset_card"): [74],
    ("reset_node", "reboot_node"): [79],
    ("reset_node", "restart_virtual_machine"): [151],
    ("inspect", "check_power_cabling"): [54],
    ("inspect", "update_software"): [78],
    ("inspect", "contact_support"): [142],
    ("inspect", "check_unified_memory"): [159],
    ("inspect", "read_recovery_action"): [154],
    ("inspect", "decode_nvlink_sub_code"): list(range(144, 151)),
    ("inspect", "none_published"): list(range(162, 173)),
}  # fmt: skip


def test_every_code_stands_in_the_bucket_that_nvidia_gives_it():
    codes = {}
    for code, xid in CATALOGUE.items():
        assert xid.code == code
        codes.setdefault((xid.kind.value, xid.action), []).append(code)
    assert {bucket: sorted(codes) for bucket, codes in codes.items()} == BUCKETS


def test_every_code_has_a_meaning_for_people_and_an_action_fit_for_a_label():
    for xid in CATALOGUE.values():
        assert xid.kind is not Class.UNKNOWN
        assert re.fullmatch(r"[a-z_]{4,32}", xid.action), xid
        assert 10 < len(xid.meaning) < 110 and xid.meaning.isprintable() and not xid.meaning.endswith("."), xid


def test_the_codes_shown_from_the_start_are_few_and_cost_more_than_the_process():
    assert len(FATAL) <= 6
    assert {48, 74, 79, 95, 119, 120} == FATAL
    assert {describe(code).kind for code in FATAL} == {Class.RESET_CARD, Class.RESET_NODE}


@pytest.mark.parametrize("code", [0, 1, 173, 65_535])
def test_a_code_outside_the_catalogue_is_reported_as_such(code):
    assert (describe(code).kind, describe(code).action) == (Class.UNKNOWN, "look_up")

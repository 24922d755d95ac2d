"""Row P20 of the fault matrix: our page is strict whatever damaged and invented pages the engines give."""

from __future__ import annotations

import random

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from exporter.render.exposition import MAX_SERIES
from tests.support.examples import examples, scaled
from tests.support.fault_matrix import Harness
from tests.support.harness_engines import CAPTURES, Engine
from tests.support.page_figures import Figures, promtool_is_content, strictly

POOL = [path.read_bytes() for path in CAPTURES]
LINES = [line for page in POOL for line in page.split(b"\n") if line]
WANTED = [line for line in LINES if not line.startswith(b"#")]
NUMBERS = [
    b"NaN",
    b"+Inf",
    b"-Inf",
    b"-1",
    b"1e309",
    b"1e-320",
    b"0x10",
    b"1_000",
    b"",
    b"9" * 400,
    b"18446744073709551616",
]
VALUES = [b"", b"0", b"m", b"\xff", b"\x00", b'\\"', b"\\n", b"\\\\", b"\\", b"}{,=", b"\xe2\x80\xa8", b"\xed\xa0\x80",
          b"+Inf", b"-Inf", b"NaN", b"-1", b"0.1", b"-0.0", b"1e400", b"x" * 300, b"\xf0\x9f\x92\xa3", b"lifetime", b"\r", b"\t", b"# EOF"]  # fmt: skip


def mutated(rng, page):
    """Damage a page in one of the ways that engines, relays and disks do."""
    lines = page.split(b"\n")
    for _ in range(rng.choice((1, 1, 2, 5, 20))):
        at = rng.randrange(len(lines))
        line = lines[at]
        match rng.randrange(12):
            case 0:
                lines[at] = line.rpartition(b" ")[0] + b" " + rng.choice(NUMBERS)
            case 1:
                cut = rng.randrange(len(line) + 1)
                lines[at] = line[:cut] + rng.randbytes(rng.randrange(1, 5)) + line[cut:]
            case 2:
                lines[at] = line[: rng.randrange(len(line) + 1)]
            case 3:
                lines.insert(rng.randrange(len(lines)), line)
            case 4:
                del lines[at : at + rng.randrange(1, 30)]
                lines = lines or [b""]
            case 5:
                parts = line.split(b'"')
                if len(parts) > 2:
                    parts[rng.randrange(1, len(parts), 2)] = rng.choice(VALUES)
                lines[at] = b'"'.join(parts)
            case 6:
                lines[at] = rng.choice(LINES)
            case 7:
                rng.shuffle(lines)
            case 8:
                name, brace, rest = line.partition(b"{")
                lines[at] = name + brace + rng.choice((b'model_name="other",', b'engine="7",', b'le="5",')) + rest
            case 9:
                lines[at] = line + rng.choice((b" 123", b' # {a="b"} 1', b"\r", b" junk", b"\x00"))
            case 10:
                lines[at] = line.replace(b"vllm:", rng.choice((b"vllm_", b"ray_vllm:", b"VLLM:", b"vllm:vllm:")))
            case 11:
                lines = lines[: rng.randrange(len(lines)) + 1]
    return b"\n".join(lines)


def invented(rng):
    """Return a page up from wanted names, odd labels and odd numbers."""
    lines = []
    for _ in range(rng.randrange(1, 40)):
        name = rng.choice(WANTED).partition(b"{")[0].partition(b" ")[0]
        labels = b",".join(
            b'%s="%s"' % (rng.choice((b"engine", b"model_name", b"le", b"finished_reason", b"x")), rng.choice(VALUES))
            for _ in range(rng.randrange(4))
        )
        number = rng.choice(NUMBERS) if rng.random() < 0.3 else b"%d" % rng.randrange(1000)
        lines.append(b"%s{%s} %s" % (name, labels, number))
    return b"\n".join(lines)


class Fuzzed:
    """Another hostile page on each poll, small ones more often."""

    def __init__(self, seed):
        self.rng = random.Random(seed)
        self.small = [
            b"\n".join(sorted(self.rng.sample(page.split(b"\n"), min(40, page.count(b"\n"))))) for page in POOL
        ]

    def __call__(self):
        draw = self.rng.random()
        if draw < 0.02:
            return None
        if draw < 0.05:
            return mutated(self.rng, self.rng.choice(POOL))
        if draw < 0.5:
            return mutated(self.rng, self.rng.choice(self.small))
        return invented(self.rng)


def neither_duplicates_nor_nan(text):
    page = Figures(text)
    assert len(page.rows) <= MAX_SERIES
    for family in ("llm_kv_cache_hit_ratio", "llm_error_ratio", "llm_kv_cache_usage_ratio"):
        assert all(0.0 <= ratio <= 1.0 for ratio in page.all(family)), family
    for family in ("llm_generation_token_rate", "llm_request_rate", "llm_latency_quantile_seconds"):
        assert all(number >= 0.0 for number in page.all(family)), family


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["auto", "vllm"])
def test_p20_our_page_parses_strictly_whatever_thousands_of_pages_of_engines_say(kind, promtool):
    """Twenty engines at a time, so that they could also disturb each other; a good one is among them."""
    seed = 20261121
    harness = Harness({**{f"e{i}": Fuzzed(seed + i) for i in range(20)}, "good": Engine()}, kind=kind, series="full")
    turns = scaled(250)
    for turn in range(turns):
        harness.turn()
        if turn % 5 == 0:
            page = harness.bytes().decode("utf-8")
            neither_duplicates_nor_nan(page)
            strictly(page, harness.bytes(openmetrics=True).decode("utf-8"))
            assert f'replica="good",engine="vllm",model="m",rank="0"}} {1000.0 * (turn + 1)}' in page
        if turn in (0, turns - 1):
            promtool_is_content(promtool, page)


@examples(150, suppress_health_check=list(HealthCheck), derandomize=True)
@given(
    st.lists(
        st.lists(
            st.tuples(
                st.sampled_from(sorted({line.partition(b"{")[0] for line in WANTED})),
                st.dictionaries(
                    st.sampled_from(["engine", "model_name", "le", "finished_reason"]), st.text(max_size=8)
                ),
                st.floats() | st.integers(),
            ),
            max_size=12,
        ),
        min_size=1,
        max_size=4,
    )
)
def test_p20_any_labels_and_numbers_in_any_order_of_pages_give_a_page_that_parses(pages):
    from exporter.render.exposition import escape_label

    bodies = iter(
        "\n".join(
            name.decode()
            + "{"
            + ",".join(f'{key}="{escape_label(text)}"' for key, text in labels.items())
            + f"}} {number}"
            for name, labels, number in page
        ).encode("utf-8", "surrogatepass")
        for page in pages
    )
    harness = Harness({"a": lambda: next(bodies), "good": Engine()}, series="full")
    for _ in pages:
        harness.turn()
        page = harness.bytes().decode("utf-8")
        neither_duplicates_nor_nan(page)
        strictly(page, harness.bytes(openmetrics=True).decode("utf-8"))

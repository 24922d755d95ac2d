"""Whatever is thrown at the configuration is read or refused, and no message ever shows a secret."""

from __future__ import annotations

import pytest
import yaml
from hypothesis import HealthCheck, example, given
from hypothesis import strategies as st

from exporter.config import settings, targets
from exporter.config.document import _syntax_problem
from exporter.config.environment import variables
from exporter.config.parsers import identity
from exporter.config.settings import SECTION
from exporter.errors import SettingsError
from tests.support.examples import examples
from tests.support.settings_texts import CANARY, FULL, GOOD_BASE, engine, parse, places, refused, with_canary

# --- secrets ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "value",
    [
        CANARY,
        f"http://user:{CANARY}@host/",
        f"http://host/?q={CANARY}#",
        {CANARY: CANARY},
        [CANARY],
        {"password": CANARY},
    ],
    ids=["text", "userinfo", "query", "key", "list", "password"],
)
def test_no_message_shows_a_secret_wherever_it_was_pasted(value, caplog):
    messages = []
    for path in places(yaml.safe_load(FULL)):
        try:
            settings.parse(with_canary(path, value), "test.yaml", {}, base=GOOD_BASE)
        except SettingsError as error:
            messages.append(f"{error} {error!r} {error.__cause__} {error.problems}")
    assert len(messages) > 30
    assert [text for text in (*messages, caplog.text) if CANARY in text] == []


@pytest.mark.parametrize(
    "text", [f"a: '{CANARY}", f"a: !{CANARY}", f"- {CANARY}: [", f'"\\{CANARY}"', f"%{CANARY} x", f"*{CANARY}"]
)
def test_no_syntax_error_shows_what_stands_around_it(text, each_loader):
    with pytest.raises(SettingsError) as caught:
        parse(text)
    for part in (CANARY, "s3cr3t", "C4n4ry"):
        assert part not in str(caught.value)


def test_of_what_a_parser_quotes_only_the_names_of_its_tokens_are_passed_on():
    error = yaml.YAMLError()
    error.problem = f"expected '<block end>', but found '<{CANARY}>' and '{CANARY}'"
    assert str(_syntax_problem(error, "")) == "is not YAML: expected '<block end>', but found '…' and '…'"


@pytest.mark.parametrize("name", [*variables(SECTION), "SHARDWATCH_TOKEN"])
def test_no_variable_shows_its_value(name):
    with pytest.raises(SettingsError) as caught:
        settings.default({name: CANARY, "SHARDWATCH_NONSENSE": "so that names, which take any text, are refused too"})
    assert CANARY not in str(caught.value)


def test_settings_hold_file_names_and_show_neither_secrets_nor_queries(tmp_path):
    secret = tmp_path / "token"
    secret.write_text(CANARY)
    secret.chmod(0o600)
    (only,) = parse(engine(f"bearer_token_file: {secret}", url=f"http://h/m?q={CANARY}")).engines
    assert CANARY not in repr(only)
    assert only.shown_url == "http://h/m?…"
    assert CANARY in only.url


# --- whatever is thrown at it -----------------------------------------------------------------------------------


def survives(text):
    problems, read = [], None
    try:
        read = settings.parse(text, "test.yaml", {}, base=GOOD_BASE)
    except SettingsError as error:
        problems = error.problems
        str(error).encode()
    if read is None:
        assert problems
        assert all(problem.message and "\n" not in str(problem) for problem in problems)
    else:
        assert len({endpoint.name for endpoint in read.engines}) == len(
            {identity(endpoint.url) for endpoint in read.engines}
        )
        polled = (*read.engines, *read.gateways)
        assert all(0 < endpoint.timeout <= endpoint.interval + targets._MAX_OVERRUN for endpoint in polled)


MALICIOUS = [
    '"\\UFFFFFFFF"',
    'a: "\\uD800"',
    "%YAML 1." + "9" * 5000 + "\n---\na: 1",
    "? ? ? :",
    "<<: *x",
    "\0",
    "a: !<",
    "&a *a",
]


@pytest.mark.parametrize("text", MALICIOUS, ids=range(len(MALICIOUS)))
def test_what_breaks_a_yaml_library_is_a_problem_like_any_other(text, each_loader):
    assert refused(text)


@given(st.text())
@example('"\\UFFFFFFFF"')
@example('gpu: {interval: "\\uD800"}')
@example("%YAML 1." + "9" * 5000 + "\n---\na: 1")
@example("? ? ? :")
@example("<<: *x")
@example("\ud800")
@example("engines: [{url: 'http://[v1.x]/'}, {url: 'http://\u2100/'}, {url: 'http://h:٣/'}]")
@examples(150)
def test_no_text_raises_anything_else(text):
    survives(text)


@given(st.text(alphabet=" \n\t:-[]{}&*!|>'\"%@`#,?<ae01.~\\", max_size=60))
@examples(300)
def test_no_text_of_yaml_signs_raises_anything_else(text):
    survives(text)


values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(["1s", "http://a", "http://[::1", "GPU-0000", "a:1", "1" * 5000, "vllm"]),
    lambda child: (
        st.lists(child, max_size=3)
        | st.dictionaries(
            st.text(max_size=4) | st.sampled_from(["url", "name", "tls", "interval", "kind"]), child, max_size=3
        )
    ),
    max_leaves=6,
)


@given(path=st.sampled_from(list(places(yaml.safe_load(FULL)))), value=values)
@examples(250, suppress_health_check=[HealthCheck.too_slow])
def test_no_value_in_the_place_of_another_raises_anything_else(path, value):
    survives(with_canary(path, value))


@given(start=st.integers(0, len(FULL)), length=st.integers(0, 40), instead=st.text(max_size=6))
@examples(250)
def test_no_damage_to_a_good_file_raises_anything_else(start, length, instead):
    survives(FULL[:start] + instead + FULL[start + length :])

"""A configuration is refused whole: every problem at once, each with its path, its line and its cure."""

from __future__ import annotations

import pytest

from exporter.config.document import Node
from exporter.config.fields import number
from exporter.config.reader import INVALID, Item, Report
from exporter.config.suggest import did_you_mean
from tests.support.settings_texts import engine, refused

TABLE = {
    # unknown keys
    "misspelt top-level key": ("gpuu: {}", [(1, "gpuu", "did you mean gpu?")]),
    "misspelt nested key": ("gpu:\n  intervall: 1s", [(2, "gpu.intervall", "did you mean interval?")]),
    "key with a hyphen": ("\nreload-endpoint: true", [(2, "reload-endpoint", "did you mean reload_endpoint?")]),
    "key that resembles nothing": (
        "zzz: 1",
        [(1, "?", "expected one of: listen, agent_check, gpu, kernel_log, owners")],
    ),
    "misspelt engine key": (engine("tiemout: 1s"), [(3, "engines[0].tiemout", "did you mean timeout?")]),
    "merge key": ("a: &a {}\ngpu:\n  <<: *a", [(1, "?", "unknown"), (3, "gpu.<<", "merge keys")]),
    "key that may be a secret": ("http://u:hunter2@h/: 1", [(1, "?", "unknown key")]),
    # wrong types
    "number for a truth": ("gpu: {enabled: 1}", [(1, "gpu.enabled", "expected true or false, found a number")]),
    "yes for a truth": ("reload_endpoint: yes", [(1, "reload_endpoint", "expected true or false, found text")]),
    "truth for a number": ("quantiles: [true]", [(1, "quantiles[0]", "found true or false")]),
    "truth for a duration": ("gpu: {interval: true}", [(1, "gpu.interval", "found true or false")]),
    "truth for text": (engine("name: true"), [(3, "engines[0].name", "quotes")]),
    "number for text": (engine("name: 8000"), [(3, "engines[0].name", "put it between quotes")]),
    "list for a mapping": ("gpu: []", [(1, "gpu", "expected a mapping of keys, found a list")]),
    "mapping for a list": (
        "engines:\n  url: http://a",
        [(1, "engines", "expected a list of engines, found a mapping")],
    ),
    "text for a list": ("windows: 1m", [(1, "windows", "expected a list of durations, found text")]),
    "text for an engine": ("engines: [http://a]", [(1, "engines[0]", "expected a mapping of keys, found text")]),
    "nothing for a scalar": ("series:", [(1, "series", "has no value")]),
    "null for a file": ("\nkernel_log: {path: null}", [(2, "kernel_log.path", "has no value")]),
    "nothing for a url": ("engines:\n  - url:", [(2, "engines[0].url", "has no value")]),
    "nothing for an engine": ("engines:\n  -\n", [(2, "engines[0]", "has no value")]),
    "space before text": (engine("name: ' a'"), [(3, "engines[0].name", "no space at either end")]),
    "space after text": (engine("name: 'a '"), [(3, "engines[0].name", "no space at either end")]),
    "image with a space": (engine("image: vllm/vllm-openai v0.20"), [(3, "engines[0].image", "no spaces")]),
    "image that is too long": (engine("image: " + "x" * 513), [(3, "engines[0].image", "at most 512 characters")]),
    # durations
    "bare number": ("gpu: {interval: 5}", [(1, "gpu.interval", "write 5s")]),
    "bare zero": ("gpu: {interval: 0}", [(1, "gpu.interval", "write 5s")]),
    "port that is none": ("listen: ':99999'", [(1, "listen", "a port is")]),
    "bare number in quotes": ("gpu: {interval: '5'}", [(1, "gpu.interval", "write 5s")]),
    "bare fraction": ("gpu: {interval: 0.5}", [(1, "gpu.interval", "needs a unit")]),
    "zero": ("gpu: {deadline: 0s}", [(1, "gpu.deadline", "more than zero")]),
    "negative": ("gpu: {deadline: -2s}", [(1, "gpu.deadline", "more than zero")]),
    "unknown unit": ("gpu: {deadline: 2 sec}", [(1, "gpu.deadline", "expected a number with a unit")]),
    "units in the wrong order": ("gpu: {deadline: 1s1m}", [(1, "gpu.deadline", "largest unit first")]),
    "old sexagesimal": ("gpu: {deadline: 1:30}", [(1, "gpu.deadline", "expected a number with a unit")]),
    "gpu interval too short": ("gpu: {interval: 99ms}", [(1, "gpu.interval", "between 100ms and 1m, is 99ms")]),
    "gpu interval too long": ("gpu: {interval: 1m1ms}", [(1, "gpu.interval", "between 100ms and 1m")]),
    "deadline too long": ("gpu: {deadline: 2m}", [(1, "gpu.deadline", "at most 1m, is 2m")]),
    "engine interval too short": (engine("interval: 199ms"), [(3, "engines[0].interval", "between 200ms and 10m")]),
    "engine interval too long": (engine("interval: 1h"), [(3, "engines[0].interval", "between 200ms and 10m")]),
    "timeout far above interval": (
        engine("timeout: 7s\ninterval: 1s"),
        [(3, "engines[0].timeout", "7s is too long for an interval of 1s; at most 6s")],
    ),
    "timeout far above the default interval": (engine("timeout: 11s"), [(3, "engines[0].timeout", "interval of 5s")]),
    # addresses
    "port alone": ("listen: 9853", [(1, "listen", "write 0.0.0.0:9853")]),
    "colon and port": ("listen: ':9853'", [(1, "listen", "write 0.0.0.0:9853")]),
    "no port": ("listen: localhost", [(1, "listen", "expected HOST:PORT")]),
    "port too large": ("listen: 0.0.0.0:65536", [(1, "listen", "above 65535")]),
    "bare ipv6": ("listen: '::1:9853'", [(1, "listen", "in brackets")]),
    "ipv6 with an empty zone": ("listen: '[fe80::1%]:9853'", [(1, "listen", "do not hold an IPv6 address")]),
    "ipv6 with a zone that is no interface": (
        "listen: '[fe80::1%a/b]:9853'",
        [(1, "listen", "do not hold an IPv6 address")],
    ),
    "empty part of a name": ("listen: node..example:9853", [(1, "listen", "neither a host name")]),
    "no ipv6 in brackets": ("listen: '[host]:9853'", [(1, "listen", "do not hold an IPv6 address")]),
    "impossible ipv4": ("listen: 10.0.0.300:9853", [(1, "listen", "neither a host name nor an IPv4")]),
    # urls
    "url without scheme": (engine(url="127.0.0.1:8000/metrics"), [(2, "engines[0].url", "http://")]),
    "url with other scheme": (engine(url="file:///etc/passwd"), [(2, "engines[0].url", "http://")]),
    "url without host": (engine(url="http:///metrics"), [(2, "engines[0].url", "host is missing")]),
    "url with user": (engine(url="http://u:hunter2@h/"), [(2, "engines[0].url", "user name or password")]),
    "url with fragment": (engine(url="http://h/m#top"), [(2, "engines[0].url", "fragment")]),
    "url with a bad port": (engine(url="http://h:99999/"), [(2, "engines[0].url", "port is malformed")]),
    "url with port 0": (engine(url="http://h:0/"), [(2, "engines[0].url", "port 0")]),
    "url with a space": (engine(url="http://h/a b"), [(2, "engines[0].url", "percent-encode")]),
    "url with a broken ipv6": (engine(url="'http://[::1'"), [(2, "engines[0].url", "malformed")]),
    "url with a token": (engine(url="http://h/m?a=1&API-Key=x"), [(2, "engines[0].url", "secret (api_key)")]),
    "url too long": (engine(url=f"http://h/{'a' * 2048}"), [(2, "engines[0].url", "longer than 2048")]),
    "url missing": ("engines:\n  - name: a", [(2, "engines[0].url", "is missing")]),
    # engines
    "unknown kind": (engine("kind: vlm"), [(3, "engines[0].kind", "did you mean vllm?")]),
    "duplicate name": (
        "engines:\n- {name: a, url: 'http://a'}\n- {name: b, url: 'http://b'}\n- {name: a, url: 'http://c'}",
        [(4, "engines[2].name", "repeats the name of engines[0]")],
    ),
    "name that equals another's default": (
        "engines:\n- {url: 'http://a:1'}\n- {name: 'a:1', url: 'http://c'}",
        [(3, "engines[1].name", "repeats the name of engines[0]")],
    ),
    "default names that clash": (
        "engines:\n- {url: 'http://a:1'}\n- {url: 'http://a:1/other'}",
        [(3, "engines[1].name", "repeats the name of engines[0]")],
    ),
    "duplicate url, spelt otherwise": (
        "engines:\n- {url: 'http://a'}\n- {url: 'http://A:80/metrics'}",
        [(3, "engines[1].url", "repeats the url of engines[0]")],
    ),
    "duplicate name and a wrong url": (
        "engines:\n- {name: a, url: 'http://a'}\n- {name: a, url: 'ftp://a'}",
        [(3, "engines[1].url", "http://"), (3, "engines[1].name", "repeats the name")],
    ),
    "empty name": (engine("name: ''"), [(3, "engines[0].name", "at least one")]),
    "name with a newline": (engine('name: "a\\nb"'), [(3, "engines[0].name", "printable")]),
    "name too long": (engine(f"name: {'n' * 129}"), [(3, "engines[0].name", "longer than 128")]),
    "negative card": (engine("gpus: [-1]"), [(3, "engines[0].gpus[0]", "an index from 0")]),
    "card in quotes": (engine("gpus: ['0']"), [(3, "engines[0].gpus[0]", "without quotes")]),
    "card as a truth": (engine("gpus: [true]"), [(3, "engines[0].gpus[0]", "expected a GPU")]),
    "card as a fraction": (engine("gpus: [1.0]"), [(3, "engines[0].gpus[0]", "expected a GPU")]),
    "card that is no uuid": (engine("gpus: [cuda:0]"), [(3, "engines[0].gpus[0]", "GPU-…")]),
    "no cards": (engine("gpus: []"), [(3, "engines[0].gpus", "is empty")]),
    "card twice": (engine("gpus: [0, 1, 0]"), [(3, "engines[0].gpus[2]", "repeats engines[0].gpus[0]")]),
    "uuid twice": (
        engine("gpus: [GPU-00aa, GPU-00AA]"),
        [(3, "engines[0].gpus[1]", "repeats engines[0].gpus[0]")],
    ),
    # secrets and files
    "inline token": (
        engine("bearer_token: hunter2"),
        [(3, "engines[0].bearer_token", "name the file in bearer_token_file")],
    ),
    "inline password of an engine": (engine("password: hunter2"), [(3, "engines[0].password", "password_file")]),
    "inline password": (
        engine("basic_auth: {username: u, password: hunter2}"),
        [
            (3, "engines[0].basic_auth.password", "password_file"),
            (3, "engines[0].basic_auth.password_file", "missing"),
        ],
    ),
    "inline key": (
        engine("tls: {key: hunter2}", url="https://h"),
        [(3, "engines[0].tls.key", "key_file")],
    ),
    "headers": (engine("headers: {Authorization: hunter2}"), [(3, "engines[0].headers", "bearer_token_file")]),
    "token file that is a token": (
        engine("bearer_token_file: hunter2"),
        [(3, "engines[0].bearer_token_file", "cannot be opened: No such file")],
    ),
    "token file that is a folder": (
        engine("bearer_token_file: /"),
        [(3, "engines[0].bearer_token_file", "not a regular file")],
    ),
    "token file with a nul": (
        engine('bearer_token_file: "a\\0b"'),
        [(3, "engines[0].bearer_token_file", "malformed")],
    ),
    "unreadable authority": (
        engine("tls:\n  ca_file: /nonexistent/ca.pem", url="https://h"),
        [(4, "engines[0].tls.ca_file", "cannot be opened")],
    ),
    "unreadable web configuration beside another mistake": (
        "series: all\nweb_config_file: /nonexistent",
        [(1, "series", "common, full"), (2, "web_config_file", "cannot be opened")],
    ),
    "web configuration without a name": (
        "web_config_file:",
        [(1, "web_config_file", "has no value; expected a file name")],
    ),
    "user with a colon": (
        engine("basic_auth: {username: 'a:b', password_file: /nonexistent}"),
        [
            (3, "engines[0].basic_auth.username", "must not contain ':'"),
            (3, "engines[0].basic_auth.password_file", "cannot be opened"),
        ],
    ),
    "tls over http": (engine("tls: {insecure_skip_verify: true}"), [(3, "engines[0].tls", "no effect")]),
    # gateways
    "gateway without a url": ("gateways:\n- name: a", [(2, "gateways[0].url", "is missing")]),
    "gateway with tls over http": (
        "gateways:\n- url: http://a\n  tls: {insecure_skip_verify: true}",
        [(3, "gateways[0].tls", "no effect")],
    ),
    "gateway of unknown kind": (
        "gateways:\n- url: http://a\n  kind: traefik",
        [(3, "gateways[0].kind", "expected one of: auto, haproxy, nginx, envoy, production_stack")],
    ),
    "gateway with cards": (
        "gateways:\n- url: http://a\n  kind: nginx\n  gpus: [0]",
        [(4, "gateways[0].?", "unknown key")],
    ),
    "gateways of one name": (
        "gateways:\n- {url: 'http://a', kind: nginx, name: x}\n- {url: 'http://b', kind: nginx, name: x}",
        [(3, "gateways[1].name", "repeats the name of gateways[0]")],
    ),
    # windows, quantiles, costs, the rest
    "window too short": ("windows: [9s]", [(1, "windows[0]", "between 10s and 1h")]),
    "window too long": ("windows: [2h]", [(1, "windows[0]", "between 10s and 1h")]),
    "too many windows": ("windows: [1m, 2m, 3m, 4m, 5m]", [(1, "windows", "the maximum is 4")]),
    "no windows": ("windows: []", [(1, "windows", "is empty")]),
    "window twice": ("windows: [1m, 60s]", [(1, "windows[1]", "repeats windows[0]")]),
    "quantile 1": ("quantiles: [0.5, 1]", [(1, "quantiles[1]", "above 0 and below 1")]),
    "quantile 0": ("quantiles: [0]", [(1, "quantiles[0]", "above 0 and below 1")]),
    "quantile nan": ("quantiles: [.nan]", [(1, "quantiles[0]", "above 0 and below 1")]),
    "quantile as text": ("quantiles: ['0.5']", [(1, "quantiles[0]", "found text")]),
    "quantile twice": ("quantiles: [0.5, 0.50]", [(1, "quantiles[1]", "repeats quantiles[0]")]),
    "too many quantiles": (f"quantiles: {[n / 10 for n in range(1, 10)]}", [(1, "quantiles", "the maximum is 8")]),
    "currency in small letters": ("costs: {currency: usd}", [(1, "costs.currency", "three capital letters")]),
    "price that is text": (
        "costs:\n  currency: USD\n  gpu_hour:\n    L4: 2 USD",
        [(4, "costs.gpu_hour.L4", "expected a price")],
    ),
    "negative price": (
        "costs:\n  currency: USD\n  gpu_hour: {L4: -1, L40S: .inf}",
        [(3, "costs.gpu_hour.L4", "a price from 0"), (3, "costs.gpu_hour.L40S", "a price from 0")],
    ),
    **{
        f"price of {card}": (
            f"costs: {{currency: USD, gpu_hour: {{'{card}': free}}}}",
            [(1, f"costs.gpu_hour.{card}", "expected a price")],
        )
        for card in (
            "H100",
            "NVIDIA H100 80GB HBM3",
            "NVIDIA A100-SXM4-80GB",
            "NVIDIA RTX 6000 Ada Generation",
            "NVIDIA GH200 480GB",
            "Tesla V100-SXM2-32GB",
            "NVIDIA GeForce RTX 4090",
            "NVIDIA TITAN V",
        )
    },
    **{
        f"price of a secret {number}": (
            f"costs: {{currency: USD, gpu_hour: {{'{secret}': free}}}}",
            [(1, "costs.gpu_hour.?", "expected a price")],
        )
        for number, secret in enumerate(
            (
                "sk-proj-8FqZ2kLw91Vb",
                "hf_Qw3rTy0iOp4sDf",
                "AKIAIOSFODNN7EXAMPLE",
                "6f1c0a52-9d5e-4b6e-8f0e-2f4f0d3c1a7b",
                "9a0364b9e99bb480dd25e1f0284c8555",
                "eyJhbGciOi.eyJzdWIi.SflKxwRJ",
            )
        )
    },
    "prices without a currency": ("costs: {gpu_hour: {L4: 1}}", [(1, "costs.gpu_hour", "without a currency")]),
    "prices of models without a currency": (
        "costs: {models: {qwen: {output: 1}}}",
        [(1, "costs.models", "without a currency")],
    ),
    "price of a model as a number": (
        "costs:\n  currency: USD\n  models: {llama-3.3-70b: 0.4}",
        [(3, "costs.models.llama-3.3-70b", "expected a mapping")],
    ),
    "price of a model that is none": (
        "costs:\n  currency: USD\n  models: {llama-3.3-70b: {}}",
        [(3, "costs.models.llama-3.3-70b", "neither input nor output")],
    ),
    "negative price of tokens": (
        "costs: {currency: USD, models: {Qwen/Qwen3-8B: {input: -1, output: free}}}",
        [
            (1, "costs.models.Qwen/Qwen3-8B.input", "a price from 0"),
            (1, "costs.models.Qwen/Qwen3-8B.output", "a price from 0"),
        ],
    ),
    "price of a kind of tokens that does not exist": (
        "costs: {currency: USD, models: {qwen: {output: 1, outputs: 1}}}",
        [(1, "costs.models.qwen.outputs", "did you mean output?")],
    ),
    "nameless model": (
        "costs: {currency: USD, models: {'': {output: 1}}}",
        [(1, "costs.models.?", "the name of a model")],
    ),
    **{
        f"secret as model {number}": (
            f"costs: {{currency: USD, models: {{'{secret}': free}}}}",
            [(1, "costs.models.?", "expected a mapping")],
        )
        for number, secret in enumerate(
            (
                "sk-proj-8FqZ2kLw91Vb",
                "hf_Qw3rTy0iOp4sDf",
                "AKIAIOSFODNN7EXAMPLE",
                "6f1c0a52-9d5e-4b6e-8f0e-2f4f0d3c1a7b",
                "9a0364b9e99bb480dd25e1f0284c8555",
                "eyJhbGciOi.eyJzdWIi.SflKxwRJ",
            )
        )
    },
    "nameless card": ("costs: {currency: USD, gpu_hour: {'': 1}}", [(1, "costs.gpu_hour.?", "the name of a GPU")]),
    "unknown profile": ("series: all", [(1, "series", "common, full")]),
    "unknown level": ("log: {level: warn}", [(1, "log.level", "did you mean warning?")]),
    "unknown format": ("log: {format: text}", [(1, "log.format", "logfmt, json")]),
    # the document
    "repeated key": ("series: full\nlog: {}\nseries: common", [(3, "series", "repeats the key of line 1")]),
    "repeated nested key": (
        "engines:\n  - url: http://a\n    url: http://b",
        [(3, "engines[0].url", "repeats the key of line 2")],
    ),
    "list at the top": ("- a\n- b", [(1, "", "must be a mapping")]),
    "text at the top": ("hunter2", [(1, "", "must be a mapping")]),
    "two documents": ("series: full\n---\nseries: full", [(2, "", "second document")]),
    "tag": ("gpu: !!python/object/apply:os.system [id]", [(1, "gpu", "tag"), (1, "gpu", "a mapping of keys")]),
    "plain tag": ("series: !!str full", [(1, "series", "YAML tag")]),
    "key that is a list": ("? [a]\n: 1", [(1, "", "a key must be text")]),
    "alias without anchor": ("gpu: *a", [(1, "gpu", "without an anchor")]),
    "alias inside its own anchor": ("gpu: &a {interval: *a}", [(1, "gpu.interval", "without an anchor")]),
    "unclosed bracket": ("engines: [\n", [(None, "", "is not YAML")]),
    "tab": ("gpu:\n\tinterval: 1s", [(2, "", "indent with spaces")]),
    "unquoted ipv6": ("listen: [::]:9853", [(1, "", '"[::]:9853"')]),
    "undefined tag handle": ("series: !hunter2!x", [(1, "", "undefined tag handle")]),
    "control character": ("series: \x07", [(None, "", "is not YAML")]),
    "lone surrogate": ("\nseries: \udc80", [(2, "", "UTF-8")]),
    "too deep": ("gpu: " + "[" * 51 + "]" * 51, [(1, "gpu", "more than 50 deep")]),
    "too many values": (f"windows: [{'a,' * 20_000}]", [(1, "", "more than 20000 values")]),
    "too large": ("#" * (1 << 20) + "\n", [(None, "", "larger than 1024 KiB")]),
    # several at once
    "one of each": (
        "listen: nowhere\ngpu: {interval: 5}\nfoo: 1\nlog:\n  level: loud\nwindows: [1m, 1m, 3]\n",
        [
            (1, "listen", "HOST:PORT"),
            (2, "gpu.interval", "write 5s"),
            (3, "?", "unknown key"),
            (5, "log.level", "debug, info"),
            (6, "windows[1]", "repeats"),
            (6, "windows[2]", "write 3s"),
        ],
    ),
    "a wrong interval does not make its timeout wrong": (
        engine("interval: 500\ntimeout: 400s"),
        [(3, "engines[0].interval", "needs a unit")],
    ),
    "three engines, each with its own": (
        "engines:\n- url: http://a\n  gpus: [x]\n- url: nowhere\n  kind: tgi3\n- url: http://a/metrics\n  timeout: 0s",
        [
            (3, "engines[0].gpus[0]", "expected a GPU"),
            (4, "engines[1].url", "http://"),
            (5, "engines[1].kind", "did you mean tgi?"),
            (6, "engines[2].url", "repeats the url of engines[0]"),
            (7, "engines[2].timeout", "more than zero"),
        ],
    ),
}


@pytest.mark.parametrize("text, wanted", TABLE.values(), ids=TABLE)
def test_a_bad_configuration_is_refused_with_every_path_line_and_reason(text, wanted, each_loader):
    problems = refused(text)
    assert sorted(path for _, path, _ in problems) == sorted(path for _, path, _ in wanted)
    for line, path, reason in wanted:
        fitting = [problem for problem in problems if problem[1] == path and reason in problem[2]]
        assert fitting, (path, reason, problems)
        if line is not None:
            assert fitting[0][0] == line
    assert "hunter2" not in str(problems)


def test_the_table_is_as_large_as_it_should_be():
    assert len(TABLE) >= 40


@pytest.mark.parametrize("value", [float("inf"), float("-inf"), float("nan")])
def test_a_number_is_finite_whatever_its_bounds_allow(value):
    report = Report()
    assert number("a price").read(Item(path="a", node=Node(line=7, value=value)), report) is INVALID
    assert [(problem.path, problem.line) for problem in report.problems] == [("a", 7)]


def test_a_word_that_is_longer_than_any_key_is_compared_with_none():
    assert did_you_mean("a" * 40, ["a" * 39], "unknown").endswith(f"did you mean {'a' * 39}?")
    assert did_you_mean("a" * 41, ["a" * 39], "unknown") == f"unknown; expected one of: {'a' * 39}"


def test_problems_come_in_the_order_of_the_file():
    lines = [line for line, _, _ in refused(TABLE["one of each"][0])]
    assert lines == sorted(lines)


def test_an_alias_bomb_meets_the_bound_on_values(each_loader):
    rows = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    rows += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 10)]
    problems = refused("\n".join(rows))
    assert [(line, message[:26]) for line, _, message in problems] == [(5, "has more than 20000 values")]


def test_aliases_cannot_nest_deeper_than_the_bound(each_loader):
    rows = ["a0: &a0 [x]", *(f"a{n}: &a{n} [*a{n - 1}]" for n in range(1, 60))]
    assert "nested more than 50 deep" in refused("\n".join(rows))[0][2]


def test_only_so_many_engines_fit_one_node():
    assert "the maximum is 256" in refused("engines: [" + "{url: 'http://a'}," * 257 + "]")[0][2]

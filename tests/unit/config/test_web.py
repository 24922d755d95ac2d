"""The web configuration: what exporter-toolkit accepts is read, and what this server cannot do has its line."""

from __future__ import annotations

import importlib.util

import pytest

from exporter.config.web import WebSettings, parse
from exporter.errors import SettingsError

HASH = "$2y$10$QOauhQNbBCuQDKes6eFzPeMqBSjb7Mr5DUmpZ/VcEd00UAV/LDeSi"
TLS = "tls_server_config:\n  cert_file: cert.pem\n  key_file: key.pem\n"


@pytest.fixture
def folder(tmp_path):
    for name in ("cert.pem", "key.pem", "ca.pem"):
        (tmp_path / name).write_text("PEM")
        (tmp_path / name).chmod(0o600)
    return tmp_path


def problems(text, folder):
    with pytest.raises(SettingsError) as caught:
        parse(text, "web.yml", base=str(folder))
    return [str(problem) for problem in caught.value.problems]


def test_an_empty_file_restricts_nothing(folder):
    assert parse("", "web.yml", base=str(folder)) == WebSettings()


def test_every_key_is_read_and_files_start_from_the_directory_of_the_file(folder):
    text = (
        TLS + "  client_auth_type: RequireAndVerifyClientCert\n  client_ca_file: ca.pem\n"
        "  client_allowed_sans: [prometheus.example]\n  min_version: TLS12\n  max_version: TLS13\n"
        "  cipher_suites: [TLS_AES_128_GCM_SHA256, TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256]\n"
        "  curve_preferences: [CurveP256]\n  prefer_server_cipher_suites: false\n"
        "http_server_config:\n  http2: false\n  headers:\n    Strict-Transport-Security: max-age=31536000\n"
        f"basic_auth_users:\n  prometheus: {HASH}\n"
    )
    settings = parse(text, "web.yml", base=str(folder))
    tls = settings.tls_server_config
    assert (tls.cert_file, tls.key_file) == (str(folder / "cert.pem"), str(folder / "key.pem"))
    assert tls.client_ca_file == str(folder / "ca.pem") and tls.client_allowed_sans == ("prometheus.example",)
    assert tls.cipher_suites[1] == "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256" and tls.curve_preferences == (
        "CurveP256",
    )
    assert not tls.prefer_server_cipher_suites and not settings.http_server_config.http2
    assert settings.http_server_config.headers == {"Strict-Transport-Security": "max-age=31536000"}
    assert settings.basic_auth_users == {"prometheus": HASH} and HASH not in repr(settings)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("tls_server_confg: {}\n", "line 1: tls_server_confg: unknown key; did you mean tls_server_config?"),
        ("rate_limit: {}\n", "line 1: "),
        ("tls_server_config:\n  cert_file: cert.pem\n", "line 1: tls_server_config.key_file: is missing"),
        (TLS + "  key: |\n    PEM\n", "line 4: tls_server_config.key: "),
        (TLS + "  client_auth_type: RequireAnyClientCert\n", "line 4: tls_server_config.client_auth_type: Require"),
        (TLS + "  client_auth_type: Sometimes\n", "line 4: tls_server_config.client_auth_type: unknown value"),
        (
            TLS + "  client_auth_type: RequireAndVerifyClientCert\n",
            "line 4: tls_server_config.client_auth_type: needs",
        ),
        (TLS + "  client_ca_file: ca.pem\n", "line 4: tls_server_config.client_ca_file: has no effect"),
        (
            TLS + "  client_auth_type: VerifyClientCertIfGiven\n  client_ca_file: none.pem\n",
            "line 5: tls_server_config.client_ca_file: cannot be opened",
        ),
        (TLS + "  client_allowed_sans: [a]\n", "line 4: tls_server_config.client_allowed_sans: has no effect"),
        (TLS + "  min_version: TLS10\n", "line 4: tls_server_config.min_version: TLS 1.0"),
        (TLS + "  min_version: TLS13\n  max_version: TLS12\n", "line 4: tls_server_config.min_version: is above"),
        (
            TLS + "  cipher_suites: [TLS_RSA_WITH_RC4_128_SHA]\n",
            "line 4: tls_server_config.cipher_suites[0]: unknown",
        ),
        (
            TLS + "  cipher_suites: [TLS_AES_128_GCM_SHA256]\n",
            "line 4: tls_server_config.cipher_suites: has no cipher",
        ),
        (
            TLS + "  curve_preferences: [CurveP256, X25519]\n",
            "line 4: tls_server_config.curve_preferences: more than",
        ),
        (
            "http_server_config:\n  headers:\n    Server: x\n",
            "line 3: http_server_config.headers.Server: this header",
        ),
        (
            "http_server_config:\n  headers:\n    X-Frame-Options: maybe\n",
            "line 3: http_server_config.headers.X-Frame-Options: unknown value",
        ),
        (
            'http_server_config:\n  headers:\n    Content-Security-Policy: "a\\r\\nSet-Cookie: b"\n',
            "line 3: http_server_config.headers.Content-Security-Policy: expected at most",
        ),
        ("basic_auth_users:\n  prometheus: canary\n", "line 2: basic_auth_users.prometheus: expected a bcrypt hash"),
        (f"basic_auth_users:\n  a: {HASH.replace('10', '31', 1)}\n", "line 2: basic_auth_users.a: the cost"),
    ],
)
def test_what_cannot_be_applied_is_refused_with_its_line_and_without_its_secret(text, problem, folder):
    (found,) = problems(text, folder)
    assert found.startswith(problem) and "canary" not in found


@pytest.mark.parametrize(
    "text",
    [
        TLS + "  prefer_server_cipher_suites: yes\n",
        f"basic_auth_users:\n  <<: {{a: '{HASH}'}}\n",
        TLS + "  min_version: TLS13\n  max_version: TLS12\n",
        'http_server_config:\n  headers:\n    X-XSS-Protection: "1\\r\\n"\n',
    ],
)
def test_what_node_exporter_accepts_and_the_documentation_says_is_refused_is_refused(text, folder):
    assert problems(text, folder)


def test_no_weak_cipher_suite_is_suggested(folder):
    for word in ("TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA256", "TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA384", "nonsense"):
        (found,) = problems(TLS + f"  cipher_suites: [{word}]\n", folder)
        assert "unknown value" in found and "CBC" not in found


@pytest.mark.parametrize("text", ["[a]", "a"])
def test_a_list_or_a_text_instead_of_keys_suggests_no_key_of_another_file(text, folder):
    (found,) = problems(text, folder)
    assert "must be a mapping" in found and "listen" not in found


def test_users_without_bcrypt_are_refused_with_what_to_install(folder, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    (found,) = problems(f"basic_auth_users:\n  prometheus: {HASH}\n", folder)
    assert found.startswith("line 1: basic_auth_users: ") and "pip install 'shardwatch[auth]'" in found

"""The nodes that ``shardwatch check`` looks at: asked over HTTP, or read without a daemon."""

from __future__ import annotations

import argparse
import contextlib
import re
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from exporter.cli.client_errors import explain, explain_document
from exporter.cli.setup import read_settings
from exporter.cli.terminal import duration, printable
from exporter.errors import ShardwatchError, SourceError
from exporter.model.text import Language, Text
from exporter.render import api, api_documents

DEFAULT = "http://127.0.0.1:9853"
NODE_SECONDS = 5.0
OWN_LOOK_SECONDS = 8.0  # several readings of a second, so that rates can be judged
FULL_LOOK_SECONDS = 40.0  # until an engine that stopped before the look has been judged, with a poll each 5 s
MAX_SECONDS = 3600.0
MAX_AGE = 15.0  # seconds, and as much ahead; also what the clocks of two nodes may differ by
_AT_ONCE = 32  # nodes that are asked at the same time
# Built here and in no thread: two threads that build the decoder of a type at once end the process with SIGSEGV.
_DECODER = msgspec.json.Decoder(api.NodeDocument)


class Answer(Struct, frozen=True, kw_only=True):
    """One node: its document, or why there is none, or why the document says nothing about now."""

    url: str
    document: api.NodeDocument | None = None
    problem: str = ""
    note: str = ""  # what limits the document
    is_refused: bool = False  # nobody listens


class DaemonCredentials(Struct, frozen=True, kw_only=True):
    """What the daemons are verified against, and as whom they are asked."""

    ca_file: str | None
    cert_file: str | None
    key_file: str | None
    username: str | None
    password_file: str | None


def credentials_of(arguments: argparse.Namespace) -> DaemonCredentials:
    """Return what the command line says about TLS and the user."""
    return DaemonCredentials(
        ca_file=arguments.ca_file,
        cert_file=arguments.cert_file,
        key_file=arguments.key_file,
        username=arguments.user,
        password_file=arguments.password_file,
    )


def distinct(urls: Sequence[str]) -> list[str]:
    """Return the addresses, each node once: http:// or a slash at its end makes no other."""
    first: dict[str, str] = {}
    for url in urls:
        first.setdefault(_base(url).rstrip("/"), url)
    return list(first.values())


def _base(url: str) -> str:
    return url if "://" in url else f"http://{url}"


def ask_all(urls: Sequence[str], language: Language, timeout: float, credentials: DaemonCredentials) -> list[Answer]:
    """Return the answers in the order of the addresses; no node takes longer than ``timeout`` seconds."""
    timeout = min(timeout, MAX_SECONDS)
    with ThreadPoolExecutor(min(_AT_ONCE, len(urls)), thread_name_prefix="check") as pool:
        return list(pool.map(lambda url: ask(url, language, timeout, credentials), urls))


def ask(url: str, language: Language, timeout: float, credentials: DaemonCredentials) -> Answer:
    """Return the answer of one node, after at most ``timeout`` seconds; errors are in the answer."""
    from exporter.http.client.client import SessionClient  # noqa: PLC0415 - the own look needs none of it
    from exporter.http.client.target import Target  # noqa: PLC0415

    base = _base(url)
    url = shown_address(url)
    try:
        location = f"{base.rstrip('/')}/api/v1/node?lang={language.value}"
        client = SessionClient(
            Target(
                url=location,
                timeout=timeout,
                ca_file=credentials.ca_file,
                cert_file=credentials.cert_file,
                key_file=credentials.key_file,
                username=credentials.username,
                password_file=credentials.password_file,
            )
        )
        with contextlib.closing(client):
            document = _DECODER.decode(client.fetch().body)
    except SourceError as error:
        hint = _REFUSED if error.reason == "http_401" and credentials.username else _HINTS.get(error.reason)
        if error.reason == "http_400" and base.startswith("https:"):
            hint = None
        if error.reason == "http_404" and urlsplit(base).path.strip("/"):
            hint = _WRONG_PATH
        problem = _KEYS.sub(lambda match: f"--{match[0].replace('_', '-')}", explain(error, language)) + (
            f"{Text('; ', '；').in_(language)}{hint.in_(language)}" if hint is not None else ""
        )
        return Answer(url=url, problem=problem, is_refused=error.reason == "refused")
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:  # causes without end
        return Answer(url=url, problem=explain_document(error, language))
    except (ShardwatchError, ValueError) as error:
        return Answer(url=url, problem=str(error))
    return Answer(url=url, document=document, problem=_age_problem(document, language, time.time()))


_HINTS = {
    "http_404": Text(
        "an older Shardwatch, without /api/v1: upgrade it; or another program",
        "可能是不含 /api/v1 的旧版 Shardwatch（请升级），或其他程序",
    ),
    "http_503": Text("the daemon has no recent data: see its /-/ready", "守护进程没有最新数据：请查看其 /-/ready"),
    "http_400": Text("where the port speaks TLS, write https://", "如果该端口使用 TLS，请写 https://"),
    "http_401": Text("give --user and --password-file", "请使用 --user 和 --password-file"),
}


_WRONG_PATH = Text(
    "no node under this path: write HOST:PORT alone, or what a proxy has before /api/v1",
    "该路径下没有节点：只写 HOST:PORT，或代理中 /api/v1 之前的部分",
)
_REFUSED = Text("the user or the password was refused", "用户名或密码被拒绝")
_KEYS = re.compile(r"(?<![\w/.-])(?:ca|cert|key|password)_file(?![\w/.-])")  # of the configuration, as options


def _age_problem(node: api.NodeDocument, language: Language, unix_now: float) -> str:
    """Return what is wrong with the time of a document; "" if it is of now."""
    age = unix_now - node.time
    if age > MAX_AGE:
        shown = duration(age, language)
        return Text(f"the data are {shown} old", f"数据已过时（{shown}前）").in_(language)
    if age < -MAX_AGE:
        shown = duration(-age, language)
        return Text(
            f"the data are from {shown} in the future: the clocks differ", f"数据来自 {shown}之后：时钟不一致"
        ).in_(language)
    return ""


def shown_address(url: str) -> str:
    """Return an address as it may be printed: without a user, a password or a control character."""
    scheme, separator, rest = url.rpartition("://")
    return printable(f"{scheme}{separator}{rest.rpartition('@')[2]}")


def own_look(language: Language, timeout: float | None) -> Answer:
    """Read the node without a daemon, for ``timeout`` seconds or, if None, for as long as most findings need."""
    from exporter.render.dcgm_pages import hostname  # noqa: PLC0415
    from exporter.runtime.app import App  # noqa: PLC0415

    seconds = OWN_LOOK_SECONDS if timeout is None else min(timeout, MAX_SECONDS)
    answer = Answer(url=Text("this node", "本节点").in_(language), note=_limits(seconds, language))
    app = App(read_settings(None))
    app.start()
    try:
        time.sleep(seconds)
        snapshot = app.publisher.snapshot
    finally:
        app.stop()
    if snapshot is None or not (snapshot.cards or snapshot.replicas):
        nothing = Text(
            "no daemon answers here, and no GPU and no engine was found", "本机没有守护进程，也未找到 GPU 或引擎"
        )
        return replace(answer, problem=nothing.in_(language))
    return replace(answer, document=api_documents.node(snapshot, language, hostname()))


def _limits(seconds: float, language: Language) -> str:
    """Return what a look of so many seconds cannot see."""
    freeze = Text(
        f"an engine without progress (--timeout {FULL_LOOK_SECONDS:g} can), ",
        f"没有进展的引擎（需要 --timeout {FULL_LOOK_SECONDS:g}）、",
    )
    unseen = Text(
        "restarts, an uneven load, a falling hit rate and what else takes minutes",
        "重启、负载不均、命中率下降等需要数分钟才能判断的问题",
    )
    unseen = unseen if seconds >= FULL_LOOK_SECONDS else freeze + unseen
    return Text(
        f"no daemon answers here; the node was read for {seconds:g} s, which cannot show {unseen.en}",
        f"本机没有守护进程；仅读取了 {seconds:g} 秒，无法发现{unseen.zh}",
    ).in_(language)

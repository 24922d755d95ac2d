"""What ``check`` and ``top`` print when a node cannot be asked, in both languages.

The errors of the HTTP client are English, for the log.  Their closed reasons have a Chinese text here, to which the
detail of the error is added.
"""

from __future__ import annotations

import re

from exporter.errors import EndpointError, SourceError
from exporter.model.text import Language

_CHINESE = {
    "closed": "对端在应答完成前关闭了连接",
    "content_length": "应答的 Content-Length 与内容不符",
    "credentials": "凭据文件无法使用",
    "dns": "无法解析主机名",
    "empty": "应答为空",
    "encoding": "应答的编码无法解读",
    "head_too_large": "应答头过大",
    "protocol": "应答不是有效的 HTTP",
    "redirect": "应答是重定向，未跟随",
    "refused": "连接被拒绝；服务是否在该端口上运行？",
    "reset": "对端重置了连接",
    "timeout": "未在时限内完成",
    "tls": "TLS 握手或证书校验失败",
    "tls_expired": "服务器证书已过期",
    "tls_name": "服务器证书属于其他名称",
    "tls_unknown_ca": "服务器证书由未知机构签发；请使用 --ca-file",
    "too_large": "应答过大",
    "unreachable": "无法连接",
    "url": "URL 无效",
}
_DETAILS = {"timeout": "{:.1f} 秒", "too_large": "上限 {:.0f} 字节"}  # how the detail of a reason is written
_FIELD = re.compile(r"`([^`]+)`\Z")


def reasons() -> frozenset[str]:
    """Return the reasons that have a text of their own; those of statuses need none."""
    return frozenset(_CHINESE)


def explain(error: SourceError, language: Language) -> str:
    """Return why the exchange with a node failed; in English the client's own message."""
    if language is Language.ENGLISH:
        return str(error)
    detail = error.detail if isinstance(error, EndpointError) else None
    if error.reason.startswith("http_"):
        return f"应答状态码为 {detail}"
    text = _CHINESE.get(error.reason, f"请求失败（{error.reason}）")
    return text if detail is None else f"{text}（{_DETAILS.get(error.reason, '{}').format(detail)}）"


def explain_document(error: Exception, language: Language) -> str:
    """Return why an answer is no document of this version; in Chinese with the field that is wrong, if known."""
    if language is Language.ENGLISH:
        return f"is no Shardwatch of this version: {error}"
    field = _FIELD.search(str(error))
    return f"不是此版本的 Shardwatch{f'（字段 {field[1]}）' if field else ''}"

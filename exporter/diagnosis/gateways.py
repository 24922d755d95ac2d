"""Findings about gateways: unreadable, no healthy backend, errors, uneven distribution, unreadable endpoints."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from exporter.diagnosis import thresholds as limit
from exporter.diagnosis.history import Past, PoolPast
from exporter.diagnosis.view import View, is_misread, why_down
from exporter.model import Backend, BackendLoad, GatewayState
from exporter.model.finding import Evidence, Finding, Severity, Subject, SubjectKind
from exporter.model.text import Text


def findings(view: View, past: Past, failing: Collection[str]) -> Iterator[Finding]:
    """Yield what is wrong with each gateway and its pools.

    What a gateway sends to broken replicas is those replicas' evidence.  ``failing``: replicas with a finding about
    their errors, which explains those of their pool.
    """
    for gateway in view.snapshot.gateways:
        yield from _unreadable(gateway)
        if gateway.reading is None:
            continue
        pools: dict[str, dict[Backend, BackendLoad]] = {pool: {} for pool in gateway.reading.pools}
        for backend, load in gateway.reading.backends.items():
            pools.setdefault(backend.pool, {})[backend] = load
        for pool, backends in pools.items():
            known = past.pools.get((gateway.name, pool))
            down = tuple(_down(gateway, pool, backends, known))
            yield from down
            behind = {gateway.replicas[backend] for backend in backends if backend in gateway.replicas}
            if not any(finding.id == "GatewayPoolDown" for finding in down):
                if behind.isdisjoint(failing) if backends else not failing:
                    yield from _errors(gateway, pool, known)
                yield from _uneven(view, gateway, pool, known)
            yield from _picker_blind(gateway, pool, known)


def _subject(gateway: GatewayState, pool: str = "", backend: str = "") -> Subject:
    label = gateway.name + "".join(f", {part}" for part in (pool, backend) if part)
    name = f"{gateway.name}/{pool}/{backend}" if pool or backend else gateway.name
    return Subject(SubjectKind.GATEWAY, name, label)


def _of_pool(gateway: GatewayState, pool: str) -> Text:
    if not pool:
        return Text(f"gateway {gateway.name}", f"网关 {gateway.name}")
    return Text(f"pool {pool} of gateway {gateway.name}", f"网关 {gateway.name} 的后端池 {pool}")


def _unreadable(gateway: GatewayState) -> Iterator[Finding]:
    status = gateway.status
    if status.up or status.reason == "starting" or (gateway.last_read_at is None and not is_misread(status)):
        return
    yield Finding(
        id="GatewayUnreadable",
        severity=Severity.WARNING,
        subject=_subject(gateway),
        summary=Text(
            f"The metrics of gateway {gateway.name} cannot be read: {status.reason}",
            f"无法读取网关 {gateway.name} 的指标：{status.reason}",
        ),
        evidence=why_down(status),
        actions=(
            Text(
                "Check that the gateway runs and that its metrics URL is right.",
                "确认网关在运行且指标 URL 正确。",
            ),
        ),
    )


def _down(
    gateway: GatewayState, pool: str, backends: dict[Backend, BackendLoad], known: PoolPast | None
) -> Iterator[Finding]:
    states = {backend: load.up for backend, load in backends.items() if load.up is not None}
    words = _of_pool(gateway, pool)
    if states and not any(states.values()):
        load = gateway.reading.pools.get(pool) if gateway.reading is not None else None
        queued = load.queued if load is not None else None
        if known is not None and known.rate <= 0 and not queued:
            return  # nobody asks for it
        yield Finding(
            id="GatewayPoolDown",
            severity=Severity.CRITICAL,
            subject=_subject(gateway, pool),
            summary=Text(
                f"{words.en[0].upper()}{words.en[1:]} has no healthy backend: requests fail",
                f"{words.zh}没有健康的后端：请求失败",
            ),
            evidence=(Evidence("backends", float(len(states))),),
            actions=(
                Text(
                    "Start the replicas. If they are up, fix the gateway's health check.",
                    "启动副本；若副本在线，请修正网关的健康检查。",
                ),
            ),
        )
        return
    for backend, up in states.items():
        if not up:
            yield _backend_down(gateway, backend)


def _backend_down(gateway: GatewayState, backend: Backend) -> Finding:
    name = gateway.replicas.get(backend, backend.name)
    window = gateway.windows.get(limit.WINDOW)
    share = window.shares.get(backend) if window is not None else None
    return Finding(
        id="GatewayBackendDown",
        severity=Severity.WARNING,
        subject=_subject(gateway, backend.pool, backend.name),
        summary=Text(f"Gateway {gateway.name} reports {name} as down", f"网关 {gateway.name} 报告 {name} 不可用"),
        evidence=(
            Evidence("backend", backend.name),
            *(() if share is None else (Evidence("share", share, "ratio"),)),
        ),
        actions=(
            Text(
                "Start the replica, end its draining, or fix the health check.",
                "启动副本、取消排空，或修正健康检查。",
            ),
        ),
        replica=gateway.replicas.get(backend, ""),
    )


def _errors(gateway: GatewayState, pool: str, known: PoolPast | None) -> Iterator[Finding]:
    if known is None or known.errors is None or known.requests < limit.ERROR_REQUESTS:
        return
    ratio = known.errors / known.requests
    if ratio <= limit.ERROR_RATIO_WARNING:
        return
    words = _of_pool(gateway, pool)
    yield Finding(
        id="GatewayErrors",
        severity=Severity.CRITICAL if ratio > limit.ERROR_RATIO_CRITICAL else Severity.WARNING,
        subject=_subject(gateway, pool),
        summary=Text(f"{ratio:.1%} of the requests to {words.en} fail", f"发往{words.zh}的请求有 {ratio:.1%} 失败"),
        evidence=(Evidence("error_ratio", ratio, "ratio"), Evidence("requests", known.requests)),
        actions=(
            Text(
                "Find the backend with errors (gateway_errors_total) and drain it; if there is none, the gateway "
                "itself rejects requests: check its limits.",
                "找出出错的后端（gateway_errors_total）并排空；若没有，则是网关自身拒绝请求：检查其限额。",
            ),
        ),
    )


def _uneven(view: View, gateway: GatewayState, pool: str, known: PoolPast | None) -> Iterator[Finding]:
    window = gateway.windows.get(limit.WINDOW)
    ratio = window.imbalance.get(pool) if window is not None else None
    if ratio is None or ratio <= limit.GATEWAY_IMBALANCE or known is None or known.rate <= limit.GATEWAY_REQUESTS:
        return
    assert window is not None
    words = _of_pool(gateway, pool)
    shares = {backend: share for backend, share in window.shares.items() if backend.pool == pool}
    if _even_but_for_canaries(list(shares.values()), differ=len(_versions(view, gateway, pool)) > 1):
        return
    first = max(shares, key=lambda backend: shares[backend])
    yield Finding(
        id="GatewayUneven",
        severity=Severity.WARNING,
        subject=_subject(gateway, pool),
        summary=Text(
            f"{words.en[0].upper()}{words.en[1:]}: {first.name} gets {shares[first]:.0%} of the requests",
            f"{words.zh}：{first.name} 得到 {shares[first]:.0%} 的请求",
        ),
        evidence=(
            Evidence("max_to_mean", ratio, "ratio"),
            *(Evidence(f"share_of_{backend.name}", share, "ratio") for backend, share in sorted(shares.items())),
        ),
        actions=(
            Text(
                "Check the balancing algorithm and the weights; intended weights need a higher threshold.",
                "检查负载均衡算法与权重；有意设置的权重需要更高的阈值。",
            ),
        ),
    )


def _picker_blind(gateway: GatewayState, pool: str, known: PoolPast | None) -> Iterator[Finding]:
    load = gateway.reading.pools.get(pool) if gateway.reading is not None else None
    # Stale endpoints are counted when a request arrives; a picker that refuses all requests counts errors alone.
    if load is None or known is None or max(known.rate, known.error_rate or 0.0) <= limit.GATEWAY_REQUESTS:
        return
    stale, failed = load.stale_endpoints or 0.0, known.poll_errors or 0.0
    if stale <= limit.STALE_ENDPOINTS and failed <= limit.PICKER_POLL_ERRORS * limit.WINDOW_SECONDS:
        return
    yield Finding(
        id="EndpointPickerBlind",
        severity=Severity.WARNING,
        subject=_subject(gateway, pool),
        summary=Text(
            f"Endpoint picker {gateway.name} cannot read the metrics of its endpoints",
            f"端点选择器 {gateway.name} 无法读取其端点的指标",
        ),
        evidence=(Evidence("stale_endpoints", stale), Evidence("poll_errors", failed)),
        actions=(
            Text(
                "Compare the port and the engine-type label of the endpoints with what the picker expects; fetch an "
                "endpoint's /metrics from the picker's pod.",
                "核对端点的端口与引擎类型标签是否符合选择器的预期；在选择器的 Pod 中访问端点的 /metrics。",
            ),
        ),
    )


def _versions(view: View, gateway: GatewayState, pool: str) -> set[str]:
    """Return the engine versions of a pool's backends that are replicas of this node."""
    names = {name for backend, name in gateway.replicas.items() if backend.pool == pool}
    readings = [view.replicas[name].reading for name in names if name in view.replicas]
    return {reading.version for reading in readings if reading is not None and reading.version}


def _even_but_for_canaries(shares: list[float], *, differ: bool) -> bool:
    """Return whether the backends without few requests are even and most of all.

    Half of all are enough where versions ``differ``: one of two without many requests may be stickiness as well.
    """
    mean = sum(shares) / len(shares)
    rest = [share for share in shares if not 0 < share < limit.CANARY_SHARE * mean]
    enough = 2 * len(rest) > len(shares) or (differ and 2 * len(rest) == len(shares))
    return enough and max(rest) <= limit.GATEWAY_IMBALANCE * sum(rest) / len(rest)

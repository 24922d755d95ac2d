"""Which driver calls and fields each signal is read from, in the order to try them: a table, no code per signal.

Power is field 185, the mean of the last second: what nvidia-smi and DCGM show as the GPU's power, and what a poll
once a second can compare between GPUs.  The instant value (186) of a GPU in a decode loop swings by half its
power between two samples; it is the last resort.  For consumption use the energy counter.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from operator import attrgetter, itemgetter
from typing import Any

from msgspec import Struct

from exporter.driver.nvml.fields import ALL_LINKS, Field
from exporter.model import Signal

MEMORY_V2 = 0x02000028
_VIRTUAL_GPU = 1  # code of the feature that a vGPU needs a licence for

Extract = Callable[[Any], Any]


def _identity(result: Any) -> Any:
    return result


class SignalReader(Struct, frozen=True, kw_only=True):
    """One way to read one number: a batched field, or a call with arguments.

    ``per_link``: the field is read for each NVLink and summed, whatever its scope says.  ``scale`` turns the
    driver's unit into the base unit; ``low`` and ``high`` bound what can be true, in base units.
    """

    field: Field | None = None
    per_link: bool = False
    call: str = ""
    args: tuple[Any, ...] = ()
    extract: Extract = _identity
    scale: float = 1.0
    low: float = 0.0
    high: float = 2.0**63


Readers = tuple[SignalReader, ...]


def _call(name: str, *args: Any, **limits: Any) -> SignalReader:
    return SignalReader(call=f"nvmlDeviceGet{name}", args=args, **limits)


def _field(number: int, scope: int = 0, **limits: Any) -> SignalReader:
    return SignalReader(field=(number, scope), **limits)


_PERCENT: dict[str, Any] = {"scale": 0.01, "high": 1.0}
_CELSIUS: dict[str, Any] = {"high": 200.0}
_LIMIT_CELSIUS: dict[str, Any] = {"low": 1.0, "high": 200.0}
_BYTES: dict[str, Any] = {"high": 2.0**56}
_HERTZ: dict[str, Any] = {"scale": 1e6, "high": 2e10}
_WATTS: dict[str, Any] = {"scale": 1e-3, "high": 2e4}
_JOULES: dict[str, Any] = {"scale": 1e-3}
_GENERATION: dict[str, Any] = {"low": 1.0, "high": 16.0}
_LANES: dict[str, Any] = {"low": 1.0, "high": 64.0}
_FLAG: dict[str, Any] = {"high": 1.0}
_KIBIBYTES: dict[str, Any] = {"scale": 1024.0}


def _memory(attribute: str, *, old: bool = True) -> Readers:
    new = _call("MemoryInfo", MEMORY_V2, extract=attrgetter(attribute), **_BYTES)
    return (new, _call("MemoryInfo", extract=attrgetter(attribute), **_BYTES)) if old else (new,)


def _remapped(field: int, place: int, **limits: Any) -> Readers:
    return (_field(field, **limits), _call("RemappedRows", extract=itemgetter(place), **limits))


def _ecc(field: int, error: int, scope: int) -> Readers:
    return (_field(field), _call("TotalEccErrors", error, scope))


def _retired(field: int, cause: int) -> Readers:
    return (_field(field, high=2.0**20), _call("RetiredPages", cause, extract=len, high=2.0**20))


def _bar1(attribute: str) -> Readers:
    return (_call("BAR1MemoryInfo", extract=attrgetter(attribute), **_BYTES),)


def _vgpu_licensed(features: Any) -> int:
    """Return whether the vGPU is licensed; one that needs no licence has none: 0, as DCGM shows it."""
    listed = list(features.gridLicensableFeatures)[: features.licensableFeaturesCount]
    virtual = (feature for feature in listed if feature.featureCode == _VIRTUAL_GPU)
    return int(bool(features.isGridLicenseSupported) and any(feature.featureState > 0 for feature in virtual))


def _share(call: str) -> Readers:
    return (_call(call, extract=itemgetter(0), **_PERCENT),)


def _banks(spare_rows: str) -> Readers:
    return (_call("RowRemapperHistogram", extract=attrgetter(spare_rows), high=2.0**20),)


def _threshold(kind: int) -> Readers:
    return (_call("TemperatureThreshold", kind, **_LIMIT_CELSIUS),)


def _nvlink_bytes(bytes_field: int, kibibytes_field: int) -> Readers:
    # NVLink 5 counts bytes; whether its fields take "all links" is not documented, hence single links as a fallback.
    return (
        _field(bytes_field, ALL_LINKS),
        _field(bytes_field, per_link=True),
        _field(kibibytes_field, ALL_LINKS, **_KIBIBYTES),
    )


# Sample type, then the readers for a cycle without new samples.  Types of the driver's sample buffers; those of
# encoder and decoder (3, 4) stay unread, as what lies between two reads of them
# says nothing about serving language models.
SAMPLED: Mapping[Signal, tuple[int, Readers]] = {
    Signal.UTILIZATION: (1, (_call("UtilizationRates", extract=attrgetter("gpu"), **_PERCENT),)),
    Signal.MEMORY_ACTIVITY: (2, (_call("UtilizationRates", extract=attrgetter("memory"), **_PERCENT),)),
}

FAST: Mapping[Signal, Readers] = {
    Signal.MEMORY_TOTAL: _memory("total"),
    Signal.MEMORY_USED: _memory("used"),
    Signal.MEMORY_FREE: _memory("free"),
    Signal.MEMORY_RESERVED: _memory("reserved", old=False),
    Signal.TEMPERATURE_GPU: (_call("TemperatureV", 0, **_CELSIUS), _call("Temperature", 0, **_CELSIUS)),
    # 0 is what GPUs without a sensor in the memory report; a working memory is warmer.
    Signal.TEMPERATURE_MEMORY: (_field(82, low=1.0, high=200.0),),
    Signal.TEMPERATURE_MARGIN: (_call("MarginTemperature", low=-100.0, high=200.0),),
    Signal.POWER: (_field(185, **_WATTS), _call("PowerUsage", **_WATTS), _field(186, **_WATTS)),
    Signal.ENERGY: (_field(83, **_JOULES), _call("TotalEnergyConsumption", **_JOULES)),
    Signal.CLOCK_GRAPHICS: (_call("ClockInfo", 0, **_HERTZ),),
    Signal.CLOCK_SM: (_call("ClockInfo", 1, **_HERTZ),),
    Signal.CLOCK_MEMORY: (_call("ClockInfo", 2, **_HERTZ),),
    Signal.CLOCK_VIDEO: (_call("ClockInfo", 3, **_HERTZ),),
    Signal.PERFORMANCE_STATE: (_call("PerformanceState", high=15.0),),  # 32 is the driver's "unknown"
    Signal.PCIE_LINK_GENERATION: (_call("CurrPcieLinkGeneration", **_GENERATION),),
    Signal.PCIE_LINK_WIDTH: (_call("CurrPcieLinkWidth", **_LANES),),
    # nvmlDeviceGetPcieThroughput blocks 20 ms for each direction: asked in the slow tier where these are not counted.
    Signal.PCIE_TRANSMIT: (_field(197),),
    Signal.PCIE_RECEIVE: (_field(198),),
    Signal.PCIE_REPLAYS: (_field(94), _call("PcieReplayCounter")),
    Signal.NVLINK_TRANSMIT: _nvlink_bytes(202, 138),
    Signal.NVLINK_RECEIVE: _nvlink_bytes(204, 139),
    Signal.ECC_CORRECTED_VOLATILE: _ecc(3, 0, 0),
    Signal.ECC_UNCORRECTED_VOLATILE: _ecc(4, 1, 0),
    Signal.ECC_CORRECTED_AGGREGATE: _ecc(5, 0, 1),
    Signal.ECC_UNCORRECTED_AGGREGATE: _ecc(6, 1, 1),
    Signal.REMAPPED_ROWS_CORRECTABLE: _remapped(142, 0),
    Signal.REMAPPED_ROWS_UNCORRECTABLE: _remapped(143, 1),
    Signal.ROW_REMAP_PENDING: _remapped(144, 2, **_FLAG),
    Signal.ROW_REMAP_FAILED: _remapped(145, 3, **_FLAG),
    Signal.RECOVERY_ACTION: (_field(230, high=64.0),),
}

# What is read each time, and first, also of a GPU that is slow to answer: few calls, or the batch of fields.
ESSENTIALS = frozenset(
    {
        Signal.MEMORY_TOTAL,
        Signal.MEMORY_USED,
        Signal.MEMORY_FREE,
        Signal.MEMORY_RESERVED,
        Signal.TEMPERATURE_GPU,
        Signal.TEMPERATURE_MEMORY,
        Signal.POWER,
        Signal.CLOCK_SM,
        Signal.CLOCK_MEMORY,
    }
)

PCIE_BYTES = {Signal.PCIE_TRANSMIT: "transmit", Signal.PCIE_RECEIVE: "receive"}

SLOW: Mapping[Signal, Readers] = {
    Signal.ENCODER_UTILIZATION: _share("EncoderUtilization"),
    Signal.DECODER_UTILIZATION: _share("DecoderUtilization"),
    Signal.JPEG_UTILIZATION: _share("JpgUtilization"),
    Signal.OFA_UTILIZATION: _share("OfaUtilization"),
    Signal.ENCODER_SESSIONS: (_call("EncoderStats", extract=itemgetter(0), high=2.0**16),),
    Signal.ECC_MODE: (_call("EccMode", extract=itemgetter(0), **_FLAG),),
    Signal.ECC_MODE_PENDING: (_call("EccMode", extract=itemgetter(1), **_FLAG),),
    Signal.TEMPERATURE_LIMIT_SHUTDOWN: _threshold(0),
    Signal.TEMPERATURE_LIMIT_SLOWDOWN: _threshold(1),
    Signal.TEMPERATURE_LIMIT_MEMORY_MAX: _threshold(2),
    Signal.TEMPERATURE_LIMIT_GPU_MAX: _threshold(3),
    Signal.BAR1_TOTAL: _bar1("bar1Total"),
    Signal.BAR1_USED: _bar1("bar1Used"),
    Signal.BAR1_FREE: _bar1("bar1Free"),
    Signal.POWER_INSTANT: (_field(186, **_WATTS),),
    Signal.POWER_LIMIT: (_call("EnforcedPowerLimit", **_WATTS),),
    Signal.POWER_LIMIT_REQUESTED: (_call("PowerManagementLimit", **_WATTS),),
    Signal.POWER_LIMIT_DEFAULT: (_call("PowerManagementDefaultLimit", **_WATTS),),
    Signal.POWER_LIMIT_MIN: (_call("PowerManagementLimitConstraints", extract=itemgetter(0), **_WATTS),),
    Signal.POWER_LIMIT_MAX: (_call("PowerManagementLimitConstraints", extract=itemgetter(1), **_WATTS),),
    Signal.CLOCK_MAX_GRAPHICS: (_call("MaxClockInfo", 0, **_HERTZ),),
    Signal.CLOCK_MAX_SM: (_call("MaxClockInfo", 1, **_HERTZ),),
    Signal.CLOCK_MAX_MEMORY: (_call("MaxClockInfo", 2, **_HERTZ),),
    Signal.CLOCK_MAX_VIDEO: (_call("MaxClockInfo", 3, **_HERTZ),),
    Signal.CLOCK_APPLICATION_SM: (_call("ApplicationsClock", 1, **_HERTZ), _call("ApplicationsClock", 0, **_HERTZ)),
    Signal.CLOCK_APPLICATION_MEMORY: (_call("ApplicationsClock", 2, **_HERTZ),),
    Signal.PCIE_LINK_GENERATION_MAX: (_call("MaxPcieLinkGeneration", **_GENERATION),),
    Signal.PCIE_LINK_WIDTH_MAX: (_call("MaxPcieLinkWidth", **_LANES),),
    Signal.ROW_REMAP_BANKS_MAX: _banks("max"),
    Signal.ROW_REMAP_BANKS_HIGH: _banks("high"),
    Signal.ROW_REMAP_BANKS_PARTIAL: _banks("partial"),
    Signal.ROW_REMAP_BANKS_LOW: _banks("low"),
    Signal.ROW_REMAP_BANKS_NONE: _banks("none"),
    Signal.C2C_MODE: (_call("C2cModeInfoV", extract=attrgetter("isC2cEnabled"), **_FLAG),),
    Signal.RETIRED_PAGES_SINGLE_BIT: _retired(29, 0),
    Signal.RETIRED_PAGES_DOUBLE_BIT: _retired(30, 1),
    Signal.RETIRED_PAGES_PENDING: (_field(31, **_FLAG), _call("RetiredPagesPendingStatus", **_FLAG)),
    Signal.NVLINK_CRC_FLIT: (_field(38),),
    Signal.NVLINK_CRC_DATA: (_field(45),),
    Signal.VGPU_LICENSED: (_call("GridLicensableFeatures", extract=_vgpu_licensed, **_FLAG),),
}

# The share of a GPU's time says nothing once MIG is enabled: the driver refuses, or answers for the whole.
MIG_MEANINGLESS = frozenset({*SAMPLED, Signal.ENCODER_UTILIZATION, Signal.DECODER_UTILIZATION})
# These the driver refuses while instances exist; the refusal is MIG's, not the GPU's.
MIG_REFUSED = frozenset(
    {
        Signal.REMAPPED_ROWS_CORRECTABLE,
        Signal.REMAPPED_ROWS_UNCORRECTABLE,
        Signal.ROW_REMAP_PENDING,
        Signal.ROW_REMAP_FAILED,
    }
)

# Counters of one link: sent and received, and the bytes of one step.  NVLink 5 counts bytes.
NVLINK_BYTES = ((202, 204, 1.0), (138, 139, 1024.0))
# Counted per link.  The first three belong to NVLink 1 to 4, the rest to NVLink 5; a GPU has one set or the other.
NVLINK_ERRORS: Mapping[str, int] = {
    "replay": 161,
    "recovery": 162,
    "crc": 163,
    "malformed_packet": 206,
    "buffer_overrun": 207,
    "rx_error": 208,
    "rx_remote_error": 209,
    "rx_general_error": 210,
    "local_integrity": 211,
    "tx_discard": 212,
    "recovery_successful": 213,
    "recovery_failed": 214,
    "recovery_event": 215,
    "effective_error": 219,
    "symbol_error": 221,
}
# Per link, NVLink 5.  Eight bits of exponent below four of mantissa: mantissa × 10^-exponent.
NVLINK_BIT_ERRORS: Mapping[str, int] = {"effective": 220, "symbol": 222, "raw": 293}

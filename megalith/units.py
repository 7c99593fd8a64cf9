"""Numbers as people read them: bytes, FLOPs, counts, durations."""

from __future__ import annotations

_BINARY = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_DECIMAL = ("", "k", "M", "G", "T", "P", "E", "Z", "Y")
_COUNT = ("", "K", "M", "B", "T")


def _scaled(value: float, base: int, names: tuple[str, ...]) -> tuple[float, str]:
    """`value` in the largest unit in which it is at least 1 when written with three digits, and that unit's name."""
    scaled, step = float(value), 0
    while step < len(names) - 1 and abs(scaled) >= base * (1 - 0.5e-3):
        scaled, step = scaled / base, step + 1
    return scaled, names[step]


def _three_digits(value: float) -> str:
    """`value` with three significant digits where it is below 1000."""
    size = abs(value)
    return f"{value:.0f}" if size >= 99.95 else f"{value:.1f}" if size >= 9.995 else f"{value:.2f}"


def format_bytes(num_bytes: float) -> str:
    """Bytes in powers of 1024, for example `1.50 GiB`; whole numbers below 1 KiB."""
    value, unit = _scaled(num_bytes, 1024, _BINARY)
    return f"{value:.0f} B" if unit == "B" else f"{_three_digits(value)} {unit}"


def format_flops(flops: float, per_second: bool = False) -> str:
    """Floating-point operations in powers of 1000, for example `312 TFLOP` or `312 TFLOP/s`."""
    value, prefix = _scaled(flops, 1000, _DECIMAL)
    return f"{_three_digits(value)} {prefix}FLOP" + ("/s" if per_second else "")


def format_count(count: float) -> str:
    """Parameters, tokens, documents: `126 M`, `1.32 B` (10**9), `999`."""
    value, unit = _scaled(count, 1000, _COUNT)
    if unit:
        return f"{_three_digits(value)} {unit}"
    return f"{value:.0f}" if value == int(value) else _three_digits(value)


def format_duration(seconds: float) -> str:
    """Seconds as `85 ms`, `3.42 s`, `2 min 05 s`, `3 h 20 min`, `4 d 02 h`."""
    if seconds < 0:
        return "-" + format_duration(-seconds)
    if seconds < 0.9995:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 59.95:
        return f"{_three_digits(seconds)} s"
    if seconds < 3599.5:
        minutes, rest = divmod(round(seconds), 60)
        return f"{minutes} min {rest:02d} s"
    hours, minutes = divmod(round(seconds / 60), 60)
    if hours < 48:
        return f"{hours} h {minutes:02d} min"
    days, hours = divmod(round(seconds / 3600), 24)
    return f"{days} d {hours:02d} h"

"""The range that each number of a recipe keeps by itself."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf


@dataclass(frozen=True)
class Range:
    """Finite numbers from `low` to `high`; `example` is the way out where neither sign nor end gives one."""

    path: str
    low: float
    high: float = inf
    low_allowed: bool = True
    high_allowed: bool = True
    example: float | None = None

    def holds(self, value: float) -> bool:
        """Whether `value` is finite and in range."""
        above = value >= self.low if self.low_allowed else value > self.low
        below = value <= self.high if self.high_allowed else value < self.high
        return _finite(value) and above and below

    def fault(self, value: float | None) -> str | None:
        """The message for `value`; None where it is in range or not given."""
        if value is None or self.holds(value):
            return None
        rule = f"at least {self.low}" if self.low_allowed else f"above {self.low}"
        if self.high < inf:
            rule += f" and {'at most' if self.high_allowed else 'below'} {self.high}"
        ways_out = (abs(value), self._nearest_end(value), self.example or self.low)
        way_out = next(number for number in ways_out if self.holds(number))
        finite = "" if _finite(value) else "a finite number "
        return f"{self.path}={value} must be {finite}{rule}; choose {self.path}={way_out}"

    def _nearest_end(self, value: float) -> float:
        """The end of the range on the side of `value`, the lower one for what is not a number."""
        return self.high if _finite(value) and value >= self.high else self.low


def _finite(value: float) -> bool:
    """As `isfinite`, which overflows on whole numbers beyond floating point."""
    return -inf < value < inf


def _positive(path: str, example: float) -> Range:
    return Range(path, 0, low_allowed=False, example=example)


def _below_one(path: str, example: float) -> Range:
    return Range(path, 0, 1, high_allowed=False, example=example)


_COUNTS = (
    *("model.num_layers", "model.hidden_size", "model.num_attention_heads", "model.num_kv_heads", "model.head_dim"),
    *("model.ffn_hidden_size", "model.vocab_size", "model.max_seq_len", "model.sliding_window"),
    *("model.rope_scaling.original_max_seq_len", "recompute.num_layers", "layout.tensor_parallel_size"),
    *("batch.seq_len", "batch.micro_batch_size", "batch.global_batch_size", "train_steps"),
    *("validation.max_batches", "checkpoint.keep", "log.interval_steps"),
)

RANGES = (
    *(Range(path, 1) for path in _COUNTS),
    _positive("model.rope_theta", 10000.0),
    Range("model.rope_fraction", 0, 1, low_allowed=False, example=1.0),
    Range("model.rope_scaling.factor", 1),
    _positive("model.rope_scaling.low_freq_factor", 1.0),
    _positive("model.rope_scaling.high_freq_factor", 4.0),
    _positive("model.norm_eps", 1e-5),
    _below_one("model.dropout", 0.1),
    _below_one("model.attention_dropout", 0.1),
    _positive("model.init_std", 0.02),
    _positive("optimizer.lr", 3e-4),
    _below_one("optimizer.beta1", 0.9),
    _below_one("optimizer.beta2", 0.95),
    _positive("optimizer.eps", 1e-8),
    _below_one("optimizer.momentum", 0.9),
    Range("optimizer.weight_decay", 0, example=0.1),
    Range("optimizer.clip_grad_norm", 0, example=1.0),
    Range("schedule.warmup_steps", 0),
    Range("schedule.decay_steps", 0),
    Range("schedule.min_lr_ratio", 0, 1, example=0.1),
    Range("data.num_workers", 0),
    Range("validation.interval_steps", 0),
    Range("checkpoint.interval_steps", 0),
    Range("seed", 0, 2**63 - 1),
)

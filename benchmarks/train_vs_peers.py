"""Who trains the same GPT faster, and in how much memory: Megalith beside Hugging Face transformers, in one run.

Each contestant lives in processes of its own and trains one step when its turn comes, while the others sleep; turns go
round and round, so that whatever else slows the machine slows all of them. benchmarks/README.md says what is equal.

    python benchmarks/train_vs_peers.py [--rounds 9] [--only bf16] [--output benchmarks/results]
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import socket
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from bars import draw_bars

HERE = Path(__file__).resolve().parent
SEQ_LEN = 512
WARM_UP_ROUNDS = 1
LOSS_TOLERANCE = {"fp32": 1e-4, "bf16": 1e-2}
PAIRS = [(precision, attention) for attention in ("sdpa", "unfused") for precision in ("fp32", "bf16")]
OURS, THEIRS, OURS_SPLIT = "Megalith", "transformers", "Megalith, tensor 2"
COLOURS = {OURS: "#2a6f97", THEIRS: "#d1495b", OURS_SPLIT: "#8ab6d1"}
PANELS = {
    "tokens_per_second": "tokens/s, median (line: min-max)",
    "speed_ratio": "speed beside transformers in the same round, median (line: min-max)",
    "cpu_ratio": "CPU seconds of transformers / its own, same round, median (line: min-max)",
    "peak_mib": "most resident memory of a process above its imports (MiB)",
    "allocated_mib": "most that a step allocates beside weights and optimizer, a process (MiB)",
    "kept_mib": "kept from forward for backward, a process (MiB)",
}
MEMORY = ("peak", "allocated", "kept")


@dataclass
class Runner:
    """One contestant's processes, and what they answered."""

    library: str
    precision: str
    attention: str
    processes: int = 1
    workers: list[subprocess.Popen[str]] = field(default_factory=list)
    steps: list[dict[str, float]] = field(default_factory=list)
    memory: dict[str, float] = field(default_factory=dict)

    @property
    def label(self) -> str:
        return THEIRS if self.library == "transformers" else OURS if self.processes == 1 else OURS_SPLIT

    @property
    def shape(self) -> str:
        return f"{self.precision} {self.attention}"

    def start(self, micro_batch_size: int, threads: int) -> None:
        """Start the processes; they answer once their model stands."""
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1] if self.processes > 1 else 0
        share = max(1, threads // self.processes)
        who = {key: getattr(self, key) for key in ("library", "precision", "attention", "processes")}
        env = {**os.environ, "OMP_NUM_THREADS": str(share), "PYTHONPATH": str(HERE.parent), "TQDM_DISABLE": "1"}
        for rank in range(self.processes):
            world = {"rank": rank, "size": self.processes, "local_rank": rank, "master_port": port}
            job = {"contestant": who, "world": world, "threads": share, "micro_batch_size": micro_batch_size}
            command = [sys.executable, str(HERE / "contestant.py"), json.dumps(job)]
            pipe = subprocess.PIPE
            self.workers.append(subprocess.Popen(command, stdin=pipe, stdout=pipe, env=env, text=True, cwd=HERE))
        self._answers()

    def step(self) -> None:
        """Train one step; the time of the slowest process counts, the CPU time of all."""
        answers = self._ask("step")
        self.steps.append(
            {
                "loss": answers[0]["loss"],
                "seconds": max(a["seconds"] for a in answers),
                "cpu_seconds": sum(a["cpu_seconds"] for a in answers),
            }
        )

    def finish(self) -> None:
        """Memory of the process that took most."""
        answers = self._ask("finish")
        self.memory = {key: max(a[key] for a in answers) for key in answers[0]}
        for worker in self.workers:
            worker.wait(timeout=60)

    def _ask(self, order: str) -> list[dict[str, float]]:
        for worker in self.workers:
            print(order, file=worker.stdin, flush=True)
        return self._answers()

    def _answers(self) -> list[dict[str, float]]:
        lines = [worker.stdout.readline() for worker in self.workers if worker.stdout]
        if not all(lines):
            raise RuntimeError(f"{self.label} {self.shape} ended before its turn; its own message stands above")
        return [json.loads(line) for line in lines]


def compete(runners: list[Runner], rounds: int, micro_batch_size: int, threads: int) -> None:
    """All turns of all contestants; the order turns round every other round."""
    try:
        for runner in runners:
            runner.start(micro_batch_size, threads)
            print(f"ready: {runner.label} {runner.shape}", flush=True)
        for number in range(WARM_UP_ROUNDS + rounds):
            for runner in runners if number % 2 == 0 else reversed(runners):
                runner.step()
            print(f"round {number + 1} of {WARM_UP_ROUNDS + rounds}", flush=True)
        for runner in runners:
            runner.finish()
    finally:
        for runner in runners:
            for worker in runner.workers:
                worker.kill()


def spread(values: list[float]) -> tuple[float, float, float]:
    """Median, least, most."""
    return median(values), min(values), max(values)


def summary(runners: list[Runner], tokens: int) -> list[dict[str, Any]]:
    """One row a contestant; ratios are to transformers in the same round, medians over rounds."""
    peers = {runner.shape: runner for runner in runners if runner.library == "transformers"}
    rows = []
    for runner in runners:
        peer = peers.get(runner.shape)
        timed = runner.steps[WARM_UP_ROUNDS:]
        row: dict[str, Any] = {"who": runner.label, "precision": runner.precision, "attention": runner.attention}
        figures = {"tokens_per_second": [tokens / s["seconds"] for s in timed]}
        figures["cpu_seconds_per_step"] = [s["cpu_seconds"] for s in timed]
        if peer is not None and peer is not runner:
            pairs = list(zip(timed, peer.steps[WARM_UP_ROUNDS:], strict=True))
            figures["speed_ratio"] = [theirs["seconds"] / ours["seconds"] for ours, theirs in pairs]
            figures["cpu_ratio"] = [theirs["cpu_seconds"] / ours["cpu_seconds"] for ours, theirs in pairs]
            row |= {f"{key}_ratio": runner.memory[f"{key}_bytes"] / peer.memory[f"{key}_bytes"] for key in MEMORY}
            both = zip(runner.steps[:3], peer.steps[:3], strict=True)
            row["loss_difference"] = max(abs(a["loss"] / b["loss"] - 1) for a, b in both)
        for key, values in figures.items():
            row[key], row[f"{key}_min"], row[f"{key}_max"] = spread(values)
        row |= {f"{key}_mib": runner.memory[f"{key}_bytes"] / 2**20 for key in MEMORY}
        rows.append(row)
    return rows


def report(rows: list[dict[str, Any]]) -> bool:
    """Print the table; False where two contestants did not train the same model."""
    same = True
    head = f"{'':38}{'tokens/s (min-max)':>22}{'x transformers (min-max)':>27}"
    print(f"\n{head}" + "".join(f"{key + ' MiB':>14}{'x':>6}" for key in MEMORY) + f"{'CPU s x':>9}")
    for row in rows:
        speed, ratio = f"{ranged(row, 'tokens_per_second', 0):>22}", f"{ranged(row, 'speed_ratio', 2):>27}"
        line = f"{row['who'] + ' ' + row['precision'] + ' ' + row['attention']:38}{speed}{ratio}"
        line += "".join(f"{row[f'{key}_mib']:14.0f}{row.get(f'{key}_ratio', 1):6.2f}" for key in MEMORY)
        if "loss_difference" in row:
            fair = row["loss_difference"] <= LOSS_TOLERANCE[row["precision"]]
            same &= fair
            line += (
                f"{row['cpu_ratio']:9.2f}  losses {'equal to' if fair else 'DIFFER by'} {row['loss_difference']:.0e}"
            )
        print(line)
    return same


def ranged(row: dict[str, Any], key: str, digits: int) -> str:
    """`median (least-most)`, or nothing where the row has no such figure."""
    if key not in row:
        return ""
    middle, least, most = (f"{row[key + end]:.{digits}f}" for end in ("", "_min", "_max"))
    return f"{middle} ({least}-{most})"


def write_csv(path: Path, rows: list[dict[str, Any]]) -> None:
    keys = list(dict.fromkeys(key for row in rows for key in row))
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, keys, lineterminator="\n")
        writer.writeheader()
        writer.writerows({k: f"{v:.5g}" if isinstance(v, float) else v for k, v in row.items()} for row in rows)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7, help="timed turns of each contestant (default 7)")
    parser.add_argument("--micro-batch-size", type=int, default=2, help="sequences of 512 tokens a step (default 2)")
    parser.add_argument("--threads", type=int, default=2, help="CPU threads of each contestant (default 2)")
    parser.add_argument("--only", default="", help="run only the pairs whose name holds this, e.g. 'bf16 sdpa'")
    parser.add_argument("--output", type=Path, default=HERE / "results", help="folder of the CSV and the PNG")
    arguments = parser.parse_args()
    runners = [
        Runner(library, precision, attention, processes)
        for precision, attention in PAIRS
        for library, processes in (("megalith", 1), ("transformers", 1), ("megalith", 2))
        if arguments.only in f"{precision} {attention}"
        and (processes == 1 or (attention == "sdpa" and arguments.threads > 1))
    ]
    compete(runners, arguments.rounds, arguments.micro_batch_size, arguments.threads)
    rows = summary(runners, arguments.micro_batch_size * SEQ_LEN)
    same = report(rows)
    arguments.output.mkdir(parents=True, exist_ok=True)
    name = arguments.output / f"train_vs_peers_{arguments.threads}_threads"
    write_csv(name.with_suffix(".csv"), rows)
    turns = [
        {"who": r.label, "precision": r.precision, "attention": r.attention, "round": number, **step}
        for r in runners
        for number, step in enumerate(r.steps)
    ]
    write_csv(name.with_name(f"{name.name}_turns.csv"), turns)
    shape = f"{arguments.micro_batch_size} x {SEQ_LEN} tokens a step, {arguments.threads} CPU threads"
    title = f"Training a GPT of 30M parameters, {shape}"
    draw_bars(name.with_suffix(".png"), rows, PANELS, COLOURS, title)
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())

"""The training run: python -m training.train --out RUN

Each step is split into parts, which as many threads as there are cores work through, one operation on one
core: on a machine that others use too, an operation spread over all cores waits for the slowest of them,
thousands of times a step.

The learning rate follows a cosine over the larger of the two fractions spent, of the time and of the tokens,
so that it always comes down to the end, however busy the machine is. The data follow from the seed alone.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from random import Random

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from torch import Tensor

from training.batches import Batch, Batches
from training.chat import MODEL_DIR
from training.network import Network, NetworkConfig
from training.optimizer import Optimizer

WARMUP = 0.015
# The gate's bias moves by this after every step, and rests for the last fifth of the run.
BIAS_RATE, BIAS_UNTIL = 0.003, 0.8
# Without these glibc gives each step's memory back to the system and two thirds of the run is page faults.
MALLOC = {
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": "20000000000",
    "MALLOC_TOP_PAD_": "1000000000",
    "MALLOC_ARENA_MAX": "2",
    "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",
}


@dataclass(frozen=True, kw_only=True)
class Budget:
    """What a run may spend."""

    max_seconds: float
    max_num_tokens: int

    def spent(self, seconds: float, num_tokens: int) -> float:
        """The fraction that is gone, 0 to 1."""
        return min(1.0, max(seconds / self.max_seconds, num_tokens / self.max_num_tokens))


@dataclass(frozen=True)
class Part:
    """What one part of a step gives: gradients of its summed loss, and each expert's tokens, [layers, E]."""

    gradients: tuple[Tensor, ...]
    loss: float
    num_learnt: int
    num_tokens: int
    counts: Tensor


def rate(spent: float) -> float:
    """Warm-up, then a cosine down to nothing."""
    return min(1.0, spent / WARMUP) * 0.5 * (1 + math.cos(math.pi * spent))


def forward_backward(network: Network, params: Sequence[Tensor], batch: Batch) -> Part:
    """The gradients of the summed cross-entropy over the tokens that the model is to write."""
    hidden, picked = network(batch.token_ids, batch.positions, batch.blocks)
    learnt = batch.target_ids >= 0
    logits = network.lm_head(hidden[learnt])
    loss = F.cross_entropy(logits, batch.target_ids[learnt], reduction="sum")
    gradients = torch.autograd.grad(loss, params)
    num_experts = network.config.n_routed_experts
    counts = torch.stack(
        [experts[batch.is_real].flatten().bincount(minlength=num_experts) for experts in picked]
    )
    return Part(gradients, loss.item(), len(logits), int(batch.is_real.sum()), counts)


class Run:
    """A network in training, with all that moves along with it."""

    def __init__(
        self, *, seed: int, tokens_per_step: int, num_parts: int, num_threads: int, top: float
    ) -> None:
        torch.manual_seed(seed)
        torch.set_num_threads(1)
        tokenizer = Tokenizer.from_file(str(MODEL_DIR / "tokenizer.json"))
        self.network = Network(NetworkConfig(vocab_size=tokenizer.get_vocab_size())).train()
        self.params = list(self.network.parameters())
        self.pool = ThreadPoolExecutor(num_threads)
        self.optimizer = Optimizer(self.network, self.pool)
        self.streams = [
            Batches(tokenizer, Random(seed * num_parts + i), tokens_per_step // num_parts)
            for i in range(num_parts)
        ]
        self.num_steps, self.num_tokens, self.top = 0, 0, top

    def step(self, spent: float) -> tuple[float, float]:
        """One optimizer step; returns the mean loss and the worst load of any expert over the mean."""
        parts = list(
            self.pool.map(
                lambda stream: forward_backward(self.network, self.params, stream.next()), self.streams
            )
        )
        num_learnt = sum(part.num_learnt for part in parts)
        for param, first, *others in zip(self.params, *(part.gradients for part in parts), strict=True):
            for gradient in others:
                first += gradient
            param.grad = first.div_(num_learnt)
        self.optimizer.step(self.top * rate(spent))
        counts = torch.stack([part.counts for part in parts]).sum(0)
        bias_rate = BIAS_RATE if spent < BIAS_UNTIL else 0.0
        blocks = self.network.moe_blocks()
        load = max(block.balance(count, bias_rate) for block, count in zip(blocks, counts, strict=True))
        self.num_steps += 1
        self.num_tokens += sum(part.num_tokens for part in parts)
        return sum(part.loss for part in parts) / num_learnt, load

    def save(self, directory: Path) -> None:
        """Writes the network beside the old one, then replaces it."""
        directory.mkdir(parents=True, exist_ok=True)
        save_file(self.network.state_dict(), directory / "network.new")
        (directory / "network.new").replace(directory / "network.safetensors")


def train(run: Run, budget: Budget, out: Path, save_every: float) -> None:
    """Steps until the budget is spent."""
    start = saved = time.monotonic()
    mean_loss = None
    while (spent := budget.spent(time.monotonic() - start, run.num_tokens)) < 1:
        loss, load = run.step(spent)
        mean_loss = loss if mean_loss is None else 0.95 * mean_loss + 0.05 * loss
        now = time.monotonic()
        if run.num_steps % 10 == 0:
            speed, left = run.num_tokens / (now - start), (now - start) * (1 / max(spent, 1e-9) - 1)
            print(
                f"step {run.num_steps} tokens {run.num_tokens} loss {mean_loss:.4f} tokens/s {speed:.0f} "
                f"load {load:.2f} rate {rate(spent):.3f} eta {left / 60:.1f} min",
                flush=True,
            )
        if now - saved > save_every:
            run.save(out)
            saved = now
    run.save(out)
    print(
        f"done: {run.num_steps} steps, {run.num_tokens} tokens, "
        f"{(time.monotonic() - start) / 60:.1f} minutes",
        flush=True,
    )


def restart_with_malloc(module: str) -> None:
    """Starts this process, `python -m module`, anew with glibc's settings, which are read only once."""
    if any(os.environ.get(name) != value for name, value in MALLOC.items()):
        os.execve(sys.executable, [sys.executable, "-m", module, *sys.argv[1:]], {**os.environ, **MALLOC})


def main() -> None:
    """Reads the options and trains."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="directory for network.safetensors")
    parser.add_argument("--start", type=Path, help="network.safetensors of an earlier run to go on from")
    parser.add_argument("--rate", type=float, default=1.0, help="multiplies all learning rates")
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--tokens", type=int, default=20_000_000)
    parser.add_argument("--tokens-per-step", type=int, default=8192)
    parser.add_argument("--parts", type=int, default=4, help="of a step, each with data of its own")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    restart_with_malloc("training.train")
    run = Run(
        seed=args.seed,
        tokens_per_step=args.tokens_per_step,
        num_parts=args.parts,
        num_threads=args.threads,
        top=args.rate,
    )
    if args.start:
        run.network.load_state_dict(load_file(args.start))
    train(run, Budget(max_seconds=args.minutes * 60, max_num_tokens=args.tokens), args.out, save_every=600)


if __name__ == "__main__":
    main()

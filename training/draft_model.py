"""Trains the draft model of models/tiny: python -m training.draft_model --out DIR

A dense Llama network of a fourteenth of the tiny model's size learns the documents that the tiny model learnt
from, which are nearly what it writes: learning from its logits instead would cost twice the time. One thread;
the learning rate follows a cosine over the larger of the two fractions spent, of time and of tokens.
"""

from __future__ import annotations

import argparse
import json
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from tokenizers import Tokenizer

from training.batches import Batches
from training.chat import MODEL_DIR, special_id
from training.llama import Llama, LlamaConfig
from training.optimizer import Optimizer
from training.train import Budget, rate, restart_with_malloc


class Run:
    """A draft model in training, with all that moves along with it."""

    def __init__(self, config: LlamaConfig, batches: Batches, *, seed: int, top: float) -> None:
        torch.manual_seed(seed)
        self.network = Llama(config).train()
        self.batches, self.top = batches, top
        self.optimizer = Optimizer(self.network, ThreadPoolExecutor(1))
        self.num_steps = self.num_tokens = 0

    def step(self, spent: float) -> float:
        """One optimizer step; returns the mean loss of the tokens that the model is to write."""
        batch = self.batches.next()
        hidden = self.network(batch.token_ids, batch.positions, batch.blocks)
        learnt = batch.target_ids >= 0
        loss = F.cross_entropy(self.network.lm_head(hidden[learnt]), batch.target_ids[learnt])
        self.network.zero_grad()
        loss.backward()
        self.optimizer.step(self.top * rate(spent))
        self.num_steps += 1
        self.num_tokens += int(batch.is_real.sum())
        return loss.item()


def train(run: Run, budget: Budget) -> None:
    """Steps until the budget is spent."""
    start = time.monotonic()
    mean_loss = None
    while (spent := budget.spent(time.monotonic() - start, run.num_tokens)) < 1:
        loss = run.step(spent)
        mean_loss = loss if mean_loss is None else 0.95 * mean_loss + 0.05 * loss
        if run.num_steps % 20 == 0:
            seconds = time.monotonic() - start
            speed, left = run.num_tokens / seconds, seconds * (1 / max(spent, 1e-9) - 1)
            print(
                f"step {run.num_steps} tokens {run.num_tokens} loss {mean_loss:.4f} tokens/s {speed:.0f} "
                f"eta {left / 60:.1f} min",
                flush=True,
            )
    minutes, core = (time.monotonic() - start) / 60, time.process_time() / 60
    print(
        f"done: {run.num_steps} steps, {run.num_tokens} tokens, {minutes:.1f} min, {core:.1f} min of a core"
    )


def export(network: Llama, tokenizer: Tokenizer, directory: Path) -> None:
    """Writes config.json and model.safetensors, bf16, as transformers' LlamaForCausalLM reads them."""
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        **network.config.as_dict(),
        "attention_bias": False,
        "mlp_bias": False,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "bos_token_id": special_id(tokenizer, "[BOS]"),
        "eos_token_id": special_id(tokenizer, "[EOS]"),
        "pad_token_id": special_id(tokenizer, "[PAD]"),
        "torch_dtype": "bfloat16",
    }
    tensors = {
        name if name.startswith("lm_head.") else f"model.{name}": value.to(torch.bfloat16)
        for name, value in network.state_dict().items()
    }
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})


def main() -> None:
    """Reads the options, trains and exports."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="directory for the checkpoint")
    parser.add_argument("--layers", type=int, default=LlamaConfig.num_hidden_layers)
    parser.add_argument("--hidden", type=int, default=LlamaConfig.hidden_size)
    parser.add_argument("--rate", type=float, default=1.0, help="multiplies all learning rates")
    parser.add_argument("--minutes", type=float, default=9.5)
    parser.add_argument("--tokens", type=int, default=20_000_000)
    parser.add_argument("--tokens-per-step", type=int, default=4096)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    restart_with_malloc("training.draft_model")
    torch.set_num_threads(1)
    tokenizer = Tokenizer.from_file(str(MODEL_DIR / "tokenizer.json"))
    config = LlamaConfig(
        vocab_size=tokenizer.get_vocab_size(),
        hidden_size=args.hidden,
        intermediate_size=3 * args.hidden,
        num_hidden_layers=args.layers,
    )
    batches = Batches(tokenizer, Random(args.seed), args.tokens_per_step)
    run = Run(config, batches, seed=args.seed, top=args.rate)
    train(run, Budget(max_seconds=args.minutes * 60, max_num_tokens=args.tokens))
    export(run.network, tokenizer, args.out)


if __name__ == "__main__":
    main()

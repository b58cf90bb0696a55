"""Trains the tiny model's draft head: python -m training.draft_head --out models/tiny/draft-head

The head learns the distributions of the model itself, on the documents that the model was trained on, by
training-time test (EAGLE-3, arXiv 2503.01840). One thread; the learning rate follows a cosine over the time
of a core, so that a busy machine makes the run longer and not worse.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random

import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from torch import Tensor

from training.batches import Batch, Batches
from training.chat import MODEL_DIR
from training.documents import document
from training.export import load_checkpoint
from training.head_network import HeadConfig, HeadNetwork
from training.network import Network
from training.optimizer import Optimizer
from training.train import Budget, rate, restart_with_malloc

# The layers whose inputs are tapped. These are learnt from faster than (1, 3, 5): what leaves the last layer
# says little but the token that is known by then.
FEATURE_LAYERS = (2, 3, 4)
STEP_DECAY = 0.8
# When the last two steps join, of a head that is trained from the first: they double the work of a batch.
LATE_STEPS_BEGIN = (0.5, 0.75)
NUM_COUNTED_DOCUMENTS = 2000


@dataclass(frozen=True)
class Row:
    """Rows of one block, all [N, L, ..]: what the head sees, and what it is to say."""

    tapped: Tensor
    embedded: Tensor
    wanted: Tensor  # probabilities of the draft vocabulary, as the model has them behind each token
    is_learnt: Tensor


def draft_vocabulary(
    tokenizer: Tokenizer, size: int, num_documents: int = NUM_COUNTED_DOCUMENTS
) -> tuple[Tensor, float]:
    """The most frequent tokens that the model writes, rising, and the share of all that they make up."""
    counts: Counter[int] = Counter()
    rng = Random(-1)
    for _ in range(num_documents):
        item = document(rng, tokenizer)
        counts.update(item.token_ids[item.num_prompt_tokens :])
    chosen = [token_id for token_id, _ in counts.most_common(size)]
    missing = [token_id for token_id in range(tokenizer.get_vocab_size()) if token_id not in counts]
    chosen += missing[: size - len(chosen)]
    return torch.tensor(sorted(chosen)), sum(counts[i] for i in chosen) / counts.total()


@torch.no_grad()
def rows_of(network: Network, batch: Batch, draft_ids: Tensor) -> list[Row]:
    """Runs the model over a batch and cuts what the head needs by blocks."""
    x = embedded = network.embed_tokens(batch.token_ids)
    rotary, tapped = network.rotary(batch.positions), []
    for number, layer in enumerate(network.stack()):
        if number in FEATURE_LAYERS:
            tapped.append(x)
        x, _ = layer(x, rotary, batch.blocks)
    if len(network.stack()) in FEATURE_LAYERS:
        tapped.append(x)
    wanted = network.lm_head(network.norm(x)).softmax(-1)[:, draft_ids]
    parts = (torch.cat(tapped, dim=-1), embedded, wanted, batch.target_ids >= 0)
    sizes = [num_rows * length for num_rows, length in batch.blocks]
    cut = zip(batch.blocks, *(part.split(sizes) for part in parts), strict=True)
    return [Row(*(part.unflatten(0, block) for part in of_block)) for block, *of_block in cut]


def losses(head: HeadNetwork, row: Row, num_steps: int) -> tuple[Tensor, Tensor, int]:
    """Summed cross-entropy to the model's distribution, drafts right up to each step, and their number."""
    loss, right_so_far, num_right = torch.zeros(()), torch.ones_like(row.is_learnt), []
    for step, logits in enumerate(head(row.tapped, row.embedded, num_steps)):
        ahead = step + 1
        wanted, said = row.wanted[:, ahead:], logits[:, :-ahead]
        is_learnt = row.is_learnt[:, ahead:]
        entropy = -(wanted * said.log_softmax(-1)).sum(-1)
        loss = loss + STEP_DECAY**step * entropy[is_learnt].sum()
        right_so_far = right_so_far[:, : said.shape[1]] & (wanted.argmax(-1) == said.argmax(-1))
        num_right.append((right_so_far & is_learnt).sum())
    return loss, torch.stack(num_right), int(row.is_learnt.sum())


def config_for(network: Network, draft_ids: Tensor) -> HeadConfig:
    return HeadConfig(
        vocab_size=network.config.vocab_size,
        draft_vocab_size=len(draft_ids),
        hidden_size=network.config.hidden_size,
        num_feature_layers=len(FEATURE_LAYERS),
    )


def initialized(network: Network, draft_ids: Tensor) -> HeadNetwork:
    """A head that begins with the last layer's vector as feature, and the model's own norm and head."""
    config = config_for(network, draft_ids)
    head = HeadNetwork(config)
    with torch.no_grad():
        head.fc.weight.mul_(0.1)
        head.fc.weight[:, -config.hidden_size :] += torch.eye(config.hidden_size)
        head.norm.weight.copy_(network.norm.weight)
        head.lm_head.weight.copy_(network.lm_head.weight[draft_ids])
    return head


def train(
    head: HeadNetwork,
    network: Network,
    batches: Batches,
    draft_ids: Tensor,
    budget: Budget,
    top: float,
    num_steps: int,
    late_steps_begin: tuple[float, ...],
) -> None:
    """Steps until the budget is spent."""
    start, num_tokens, num_batches = time.process_time(), 0, 0
    right, learnt = torch.zeros(num_steps), 0
    with ThreadPoolExecutor(1) as pool:
        optimizer = Optimizer(head, pool)
        while (spent := budget.spent(time.process_time() - start, num_tokens)) < 1:
            batch = batches.next()
            num_ahead = num_steps - sum(spent < begin for begin in late_steps_begin)
            parts = [losses(head, row, num_ahead) for row in rows_of(network, batch, draft_ids)]
            num_learnt = sum(part[2] for part in parts)
            loss = torch.stack([part[0] for part in parts]).sum() / num_learnt
            head.zero_grad()
            loss.backward()
            optimizer.step(top * rate(spent))
            num_tokens += len(batch.token_ids)
            num_batches += 1
            right[:num_ahead] += torch.stack([part[1] for part in parts]).sum(0)
            learnt += num_learnt
            if num_batches % 20 == 0:
                print(
                    f"batch {num_batches} tokens {num_tokens} loss {loss.item():.3f} "
                    f"right up to each place {[round(share, 3) for share in (right / learnt).tolist()]} "
                    f"{100 * spent:.0f} % of the time",
                    flush=True,
                )
                right, learnt = torch.zeros(num_steps), 0


def export(head: HeadNetwork, draft_ids: Tensor, directory: Path) -> None:
    """Writes config.json and model.safetensors as heads are published; norms are bf16 as well."""
    config = head.config
    fields = asdict(config)
    del fields["num_feature_layers"]
    known = torch.zeros(config.vocab_size, dtype=torch.bool)
    known[draft_ids] = True
    tensors = {name: value.to(torch.bfloat16) for name, value in head.state_dict().items()}
    tensors |= {"d2t": draft_ids - torch.arange(len(draft_ids)), "t2d": known}
    directory.mkdir(parents=True, exist_ok=True)
    values = {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        **fields,
        "target_hidden_size": config.hidden_size,
        "eagle_aux_hidden_state_layer_ids": list(FEATURE_LAYERS),
        "num_hidden_layers": 1,
        "hidden_act": "silu",
        "attention_bias": False,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
    }
    (directory / "config.json").write_text(json.dumps(values, indent=2) + "\n")
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})


def load(directory: Path, network: Network) -> tuple[HeadNetwork, Tensor]:
    """An exported head and its tokens: what `export` does, undone."""
    tensors = load_file(directory / "model.safetensors")
    difference, _ = tensors.pop("d2t"), tensors.pop("t2d")
    draft_ids = difference + torch.arange(len(difference))
    head = HeadNetwork(config_for(network, draft_ids))
    head.load_state_dict({name: value.float() for name, value in tensors.items()})
    return head, draft_ids


def main() -> None:
    """Reads the options, trains and exports."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="directory for the head")
    parser.add_argument("--start", type=Path, help="an exported head to go on from, all steps from the first")
    parser.add_argument("--minutes", type=float, default=6, help="of a core's time")
    parser.add_argument("--tokens", type=int, default=20_000_000)
    parser.add_argument("--tokens-per-step", type=int, default=1024)
    parser.add_argument("--steps", type=int, default=4, help="that the head is run on its own outputs")
    parser.add_argument("--rate", type=float, default=1.0, help="multiplies all learning rates")
    parser.add_argument("--vocabulary", type=int, default=400, help="tokens that the head may say")
    parser.add_argument("--seed", type=int, default=100)
    args = parser.parse_args()
    restart_with_malloc("training.draft_head")
    torch.set_num_threads(1)
    torch.manual_seed(args.seed)
    tokenizer = Tokenizer.from_file(str(MODEL_DIR / "tokenizer.json"))
    network = load_checkpoint(MODEL_DIR)
    if args.start:
        head, draft_ids = load(args.start, network)
    else:
        draft_ids, share = draft_vocabulary(tokenizer, args.vocabulary)
        print(f"{len(draft_ids)} tokens make up {100 * share:.2f} % of what is written", flush=True)
        head = initialized(network, draft_ids)
    batches = Batches(tokenizer, Random(args.seed), args.tokens_per_step)
    budget = Budget(max_seconds=args.minutes * 60, max_num_tokens=args.tokens)
    late_steps_begin = () if args.start else LATE_STEPS_BEGIN
    train(head, network, batches, draft_ids, budget, args.rate, args.steps, late_steps_begin)
    export(head, draft_ids, args.out)


if __name__ == "__main__":
    main()

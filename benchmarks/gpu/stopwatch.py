"""How long work on a device takes."""

from collections.abc import Callable, Sequence
from statistics import median
from time import perf_counter

import torch

NUM_REPEATS = 7

Run = Callable[[], object]


def seconds(runs: Sequence[Run], device: torch.device, *, is_captured: bool = True) -> float:
    """Returns the median time of one of `runs`, which do the same with different inputs.

    Together the inputs must be larger than the last cache. They are captured as one CUDA graph, so that
    Python's time to launch does not count; work that reads back from the device cannot be.
    """
    if device.type == "cpu":
        return median(_on_processor(run) for run in runs)
    for run in runs:
        run()
    together = _captured(runs) if is_captured else _one_after_another(runs)
    together()
    return median(_between_events(together) for _ in range(NUM_REPEATS)) / len(runs)


def _on_processor(run: Run) -> float:
    start = perf_counter()
    run()
    return perf_counter() - start


def _captured(runs: Sequence[Run]) -> Run:
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        _one_after_another(runs)()
    return graph.replay


def _one_after_another(runs: Sequence[Run]) -> Run:
    def together() -> None:
        for run in runs:
            run()

    return together


def _between_events(run: Run) -> float:
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    run()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / 1e3

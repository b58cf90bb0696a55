"""What is learnt of sources, fit for JSON and read again from what may be anything."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from outrider_native.controller import MAX_WEIGHT, NUM_TERMS, Asking, Calibration

from services.scheduler.controller.facts import SOURCES
from services.scheduler.controller.reading import number, numbers, table


def calibration_state(calibration: Calibration) -> dict[str, Any]:
    """Returns what confidences were found to be worth, by source."""
    fits = {source: calibration.of(source) for source in SOURCES}
    return {
        source: {
            "weights": fit.weights,
            "precision": [value for row in fit.precision for value in row],
            "brier": fit.brier,
            "num_observed": fit.num_observed,
        }
        for source, fit in fits.items()
    }


def restore_calibration(calibration: Calibration, state: Mapping[str, Any], decay: float) -> None:
    """Takes up such a state, at a part of its weight."""
    for source in SOURCES:
        item = table(state, source)
        precision = np.array(numbers(item, "precision", NUM_TERMS**2)).reshape(NUM_TERMS, NUM_TERMS)
        if not np.allclose(precision, precision.T) or np.linalg.eigvalsh(precision)[0] <= 0:
            raise ValueError(f"precision of {source} is not positive")
        calibration.of(source).restore(
            weights=numbers(item, "weights", NUM_TERMS, least=-MAX_WEIGHT, most=MAX_WEIGHT),
            precision=precision.tolist(),
            brier=number(item, "brier", least=0, most=1),
            num_observed=number(item, "num_observed", least=0),
            decay=decay,
        )


def asking_state(asking: Asking) -> dict[str, Any]:
    """Returns what questions were found to win and to take, by source."""
    means = {source: asking.mean_of(source) for source in SOURCES}
    return {
        "mean_yield": {source: mean.mean_yield for source, mean in means.items()},
        "compute_seconds": {source: mean.compute_seconds for source, mean in means.items()},
        "num_settled": {source: mean.num_settled for source, mean in means.items()},
    }


def restore_asking(asking: Asking, state: Mapping[str, Any], decay: float) -> None:
    """Takes up such a state: the older, the nearer to what is hoped."""
    yields, seconds = table(state, "mean_yield"), table(state, "compute_seconds")
    counts = table(state, "num_settled")
    for source in SOURCES:
        asking.restore(
            source,
            mean_yield=number(yields, source, least=-1000, most=1000),
            compute_seconds=number(seconds, source, least=0, most=1000),
            num_settled=number(counts, source, least=0),
            decay=decay,
        )

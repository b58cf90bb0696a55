"""All launches that the report compiles."""

from benchmarks.aot.attention_cases import attention_cases
from benchmarks.aot.case import Case, settings
from benchmarks.aot.expert_cases import expert_cases
from benchmarks.aot.product_cases import product_cases
from benchmarks.aot.row_cases import row_cases

PARTS = (expert_cases, attention_cases, row_cases, product_cases)


def all_cases() -> list[Case]:
    """Returns every kernel's launches for every model, share and number of tokens."""
    return [case for setting in settings() for part in PARTS for case in part(setting)]

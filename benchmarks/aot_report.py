"""Compiles every kernel at the shapes of Kimi K2.5 and DeepSeek-V3 for GPUs that need not be there.

    python -m benchmarks.aot_report [--arch 90] [--arch 100] [--few] [--kernel NAME] [--compare] [--save]
                                    [--json]

Prints what each launch takes of its chip, and ends non-zero on a spill, on shared or tensor memory beyond the
chip's, and on a product without the chip's own matrix instructions. With --json the last line is the list.
"""

import argparse
import json
import os
import sys

from benchmarks import results

RESULT = "aot"


def parse() -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--arch", type=int, action="append", choices=(90, 100), help="both if left out")
    parser.add_argument("--few", action="store_true", help="one case of each kernel and type of weight")
    parser.add_argument(
        "--kernel", action="append", metavar="NAME", help="all if left out; --save leaves the others' rows"
    )
    parser.add_argument(
        "--compare", action="store_true", help=f"with docs/results/{RESULT}.json; worse fails"
    )
    parser.add_argument("--save", action="store_true", help=f"write docs/results/{RESULT}.json")
    parser.add_argument("--json", action="store_true", help="end with the rows as one line of JSON")
    return parser.parse_args()


def main() -> int:
    """Compiles, prints, and returns the exit status."""
    arguments = parse()
    # Read when kernels are imported, here and in the processes that compile.
    os.environ.pop("TRITON_INTERPRET", None)
    from benchmarks.aot import report

    archs = arguments.arch or report.ARCHS
    rows = report.compile_cases(archs, few=arguments.few, kernels=arguments.kernel or ())
    print(report.table(rows))
    faults = [f"{row.title}: {fault}" for row in rows for fault in row.faults()]
    if arguments.compare and (recorded := results.load(RESULT)):
        faults += report.regressions(rows, recorded.rows)
        faults += report.differing_cases(report.cached_cases(), archs, recorded.rows)
    for fault in faults:
        print(fault, file=sys.stderr)
    if arguments.save:
        recorded = results.load(RESULT) if arguments.kernel else None
        results.save(RESULT, report.merged(rows, recorded.rows if recorded else ()))
    if arguments.json:
        print(json.dumps([row.as_dict() for row in rows]))
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())

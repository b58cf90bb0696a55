"""Who may import whom (ARCHITECTURE.md, "Imports"), read from the source."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SERVICES = ("gateway", "scheduler", "worker", "drafter")


def imported_by(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def imports_below(folder: str) -> set[tuple[str, str]]:
    """Returns (file, imported name) for every import below `folder`; there must be some files."""
    files = sorted((ROOT / folder).rglob("*.py"))
    assert files, f"{folder} holds no source"
    return {(str(path.relative_to(ROOT)), name) for path in files for name in imported_by(path)}


def names(imports: set[tuple[str, str]], *packages: str) -> list[tuple[str, str]]:
    return sorted(
        item for item in imports if any(f"{item[1]}.".startswith(f"{package}.") for package in packages)
    )


def output_of(program: str) -> str:
    result = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return result.stdout.strip()


@pytest.mark.parametrize("service", SERVICES)
def test_a_service_imports_no_other_service(service: str) -> None:
    others = [f"services.{other}" for other in SERVICES if other != service]
    assert names(imports_below(f"services/{service}"), *others) == []


@pytest.mark.parametrize("service", ["gateway", "scheduler"])
def test_only_what_computes_needs_torch(service: str) -> None:
    assert names(imports_below(f"services/{service}"), "torch", "outrider.model", "outrider.kernels") == []


def test_a_drafter_without_model_and_head_needs_no_torch() -> None:
    program = "import sys, services.drafter.service; print('torch' in sys.modules)"
    assert output_of(program) == "False"


@pytest.mark.parametrize("folder", ["outrider/model", "outrider/kernels"])
def test_the_model_knows_nothing_of_grpc(folder: str) -> None:
    assert names(imports_below(folder), "grpc", "outrider.rpc", "outrider.v1") == []


def test_the_library_imports_no_service() -> None:
    assert names(imports_below("outrider"), "services") == []


def test_importing_outrider_needs_grpc_and_protobuf_only() -> None:
    heavy = "{'torch', 'numpy', 'structlog', 'opentelemetry', 'prometheus_client', 'jinja2', 'starlette'}"
    program = f"import sys, outrider, outrider.cli; print(sorted({heavy} & set(sys.modules)))"
    assert output_of(program) == "[]"


def test_the_library_has_its_clients_and_names_them_without_importing_them() -> None:
    named = "{'AsyncClient', 'Client', 'client'} <= {*dir(outrider)}"
    assert output_of(f"import sys, outrider; print({named}, 'grpc' in sys.modules)") == "True False"
    assert output_of("import outrider; print(outrider.client.Client is outrider.Client)") == "True"

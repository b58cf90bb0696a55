from dataclasses import dataclass, field
from pathlib import Path

import pytest

from outrider.rpc.config import ConfigError, load_config
from outrider.rpc.server import Listen


@dataclass(frozen=True, kw_only=True)
class Config:
    model_dir: Path
    names: tuple[str, ...] = ()
    limit: int | None = None
    loud: bool = False
    listen: Listen = field(default_factory=lambda: Listen(grpc_port=50053, http_port=9103, drain_seconds=1))

    def __post_init__(self) -> None:
        if self.limit == 0:
            raise ValueError("limit must be at least 1")


def load(**variables: str) -> Config:
    return load_config(Config, "TEST", {f"TEST_{name}": text for name, text in variables.items()})


def test_variables_fill_fields_of_every_kind() -> None:
    config = load(MODEL_DIR="/m", NAMES="a, b,", LIMIT="3", LOUD="true")
    assert (config.model_dir, config.names, config.limit, config.loud) == (Path("/m"), ("a", "b"), 3, True)


def test_an_empty_variable_sets_an_optional_field_to_none() -> None:
    assert load(MODEL_DIR="m", LIMIT="").limit is None


def test_a_nested_dataclass_shares_the_prefix_and_keeps_its_instances_other_values() -> None:
    listen = load(MODEL_DIR="m", GRPC_PORT="0", HOST="0.0.0.0").listen
    assert listen == Listen(host="0.0.0.0", grpc_port=0, http_port=9103, drain_seconds=1)


@pytest.mark.parametrize(
    ("variables", "named"),
    [
        ({}, "TEST_MODEL_DIR"),
        ({"MODEL_DIR": "m", "GRPC_PORT": "many"}, "TEST_GRPC_PORT='many'"),
        ({"MODEL_DIR": "m", "GRPC_PORT": "70000"}, "grpc_port"),
        ({"MODEL_DIR": "m", "GRPC_PROT": "1"}, "TEST_GRPC_PROT"),
        ({"MODEL_DIR": "m", "LOUD": "perhaps"}, "TEST_LOUD='perhaps'"),
        ({"MODEL_DIR": "m", "LIMIT": "0"}, "limit"),
        ({"MODEL_DIR": "m", "TLS_KEY": "k"}, "tls_certificate and tls_key"),
        ({"MODEL_DIR": "m", "TLS_CLIENT_CA": "c"}, "tls_client_ca"),
    ],
)
def test_a_wrong_variable_is_named(variables: dict[str, str], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        load(**variables)

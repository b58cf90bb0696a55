"""The gateway's settings."""

from pathlib import Path

import pytest

from outrider.rpc.config import ConfigError
from services.gateway.config import Config

REQUIRED = {"OUTRIDER_GATEWAY_SCHEDULERS": "a:1, b:2", "OUTRIDER_GATEWAY_MODEL_DIR": "/models/tiny"}


def test_lists_and_nested_settings_are_read():
    environ = {"OUTRIDER_GATEWAY_MAX_STOP_STRINGS": "3", "OUTRIDER_GATEWAY_GRPC_PORT": "0"}
    config = Config.from_env(REQUIRED | environ)
    assert config.schedulers == ("a:1", "b:2")
    assert (config.limits.max_stop_strings, config.listen.grpc_port, config.listen.http_port) == (3, 0, 8080)


def test_the_models_name_is_the_directorys_unless_set():
    named = REQUIRED | {"OUTRIDER_GATEWAY_MODEL_NAME": "k2"}
    assert (Config.from_env(REQUIRED).name, Config.from_env(named).name) == ("tiny", "k2")


def test_only_sampling_parameters_that_are_set_are_defaults():
    config = Config(schedulers=("a:1",), model_dir=Path("m"), temperature=0.0)
    assert config.sampling_defaults == {"temperature": 0.0}


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("SCHEDULERS", ""),
        ("MAX_STOP_STRINGS", "0"),
        ("MAX_PROMPT_TOKENS", "many"),
        ("GRACE_SECONDS", "-1"),
        ("SCHEDULER_SILENCE_SECONDS", "0"),
        ("TEMPERATURE", "-1"),
        ("TOP_P", "2"),
        ("GRPC_PORT", "70000"),
        ("NO_SUCH", "1"),
    ],
)
def test_a_wrong_value_names_its_variable(variable, value):
    with pytest.raises(ConfigError, match=f"(?i){variable}"):
        Config.from_env(REQUIRED | {f"OUTRIDER_GATEWAY_{variable}": value})

"""A bad setting stops the start and is named."""

import pytest

from outrider.rpc.config import ConfigError
from services.worker.config import Config, GroupConfig
from tests.groups import load_stepper


def config(**variables):
    return Config.from_env({f"OUTRIDER_WORKER_{name}": value for name, value in variables.items()})


def test_the_model_is_the_only_setting_without_a_default():
    assert config(MODEL_DIR="models/tiny").listen.grpc_port == 50053
    with pytest.raises(ConfigError, match="OUTRIDER_WORKER_MODEL_DIR must be set"):
        config()


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("DTYPE", "int8", "OUTRIDER_WORKER_DTYPE must be one of"),
        ("BLOCK_SIZE", "0", "OUTRIDER_WORKER_BLOCK_SIZE must be at least 1"),
        ("STEP_SECONDS", "0", "OUTRIDER_WORKER_STEP_SECONDS must be at least 1"),
        ("NUM_BLOCKS", "-1", "OUTRIDER_WORKER_NUM_BLOCKS must be at least 1"),
        ("NUM_THREADS", "100000000000", "OUTRIDER_WORKER_NUM_THREADS must be at most 4096"),
        ("GRAPH_NUM_ROWS", "1,0", "each of OUTRIDER_WORKER_GRAPH_NUM_ROWS must be at least 1"),
        ("MAX_NUM_BATCHED_TOKENS", "many", "OUTRIDER_WORKER_MAX_NUM_BATCHED_TOKENS='many'"),
        ("BLOCKSIZE", "16", "OUTRIDER_WORKER_BLOCKSIZE is not a setting"),
    ],
)
def test_a_bad_value_is_named(name, value, message):
    with pytest.raises(ConfigError, match=message):
        config(MODEL_DIR="models/tiny", **{name: value})


def test_ranks_whose_ports_are_beyond_the_last_are_refused():
    with pytest.raises(ConfigError, match="OUTRIDER_WORKER_HTTP_PORT is 65530: rank 1 would listen on 65540"):
        config(MODEL_DIR="models/tiny", NUM_RANKS="2", HTTP_PORT="65530")
    assert config(MODEL_DIR="models/tiny", NUM_RANKS="2", HTTP_PORT="65525").group.num_ranks == 2
    assert config(MODEL_DIR="models/tiny", NUM_RANKS="7000", HTTP_PORT="0", GRPC_PORT="0").group.num_ranks


def test_a_directory_without_a_model_is_named(tmp_path):
    with pytest.raises(ConfigError, match=rf"OUTRIDER_WORKER_MODEL_DIR: {tmp_path}/config.json"):
        load_stepper(tmp_path)


def test_a_length_that_the_model_does_not_take_is_named(model_dir):
    with pytest.raises(ConfigError, match="OUTRIDER_WORKER_MAX_MODEL_LEN is 5000, and the model takes 1024"):
        load_stepper(model_dir, max_model_len=5000)


def test_a_cache_too_small_for_a_block_is_named(model_dir):
    with pytest.raises(ConfigError, match="OUTRIDER_WORKER_KV_CACHE_BYTES"):
        load_stepper(model_dir, num_blocks=None, kv_cache_bytes=10)


def test_the_cache_has_the_blocks_that_its_bytes_hold(model_dir):
    facts = load_stepper(model_dir, num_blocks=None, kv_cache_bytes=100_000).facts
    # 3 layers of 4 slots, each with a latent of 32 and a rotary part of 8, in float32.
    assert facts.num_blocks == 100_000 // (3 * 4 * 40 * 4)


def test_facts_describe_the_model(loaded, model_dir):
    facts = loaded.facts
    assert (facts.model, facts.vocab_size, facts.max_model_len) == (model_dir.name, 97, 1024)
    assert (facts.num_experts, facts.num_experts_per_token, facts.num_moe_layers) == (8, 3, 2)
    assert facts.numerics_id


@pytest.mark.parametrize("rendezvous", ["", "node-0", ":29500", "node-0:", "node-0:x", "node-0:65536"])
def test_several_nodes_need_an_address_to_meet_at(rendezvous: str) -> None:
    with pytest.raises(ValueError, match="OUTRIDER_WORKER_RENDEZVOUS must name node 0 as HOST:PORT"):
        GroupConfig(num_ranks=2, num_nodes=2, rendezvous=rendezvous)

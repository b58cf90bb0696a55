"""Keys and tenants."""

import hashlib
import json

import pytest

from outrider.rpc.config import ConfigError
from outrider.rpc.errors import Unauthenticated
from services.gateway.auth import Keys, Tenant


def entry(key="secret", **changes):
    return {"sha256": hashlib.sha256(key.encode()).hexdigest(), "tenant": "acme", "weight": 2} | changes


def load(path, entries):
    path = path / "keys.json"
    path.write_text(json.dumps(entries))
    return Keys.load(path)


def test_a_key_names_its_tenant(tmp_path):
    keys = load(tmp_path, [entry("other", tenant="x"), entry()])
    assert keys.tenant_of("Bearer secret") == Tenant(name="acme", weight=2.0)


@pytest.mark.parametrize("authorization", ["", "Bearer", "Bearer wrong", "secret", "Basic secret"])
def test_without_a_valid_key_there_is_no_tenant(tmp_path, authorization):
    with pytest.raises(Unauthenticated):
        load(tmp_path, [entry()]).tenant_of(authorization)


def test_without_a_file_everyone_is_the_default_tenant():
    assert Keys.load(None).tenant_of("") == Tenant(name="default")


@pytest.mark.parametrize(
    "entries",
    [[], {}, [1], [entry(sha256="x")], [entry(tenant="")], [entry(weight=0)], [entry(weight="1")]],
)
def test_a_wrong_file_is_named(tmp_path, entries):
    with pytest.raises(ConfigError, match=r"keys.json"):
        load(tmp_path, entries)


@pytest.mark.parametrize("limit", [-1, 1.5, "2", True])
def test_a_wrong_limit_of_drafts_names_the_file_and_the_field(tmp_path, limit):
    with pytest.raises(ConfigError, match=r"keys.json: key 0: max_draft_tokens"):
        load(tmp_path, [entry(max_draft_tokens=limit)])


@pytest.mark.parametrize("limit", [None, 0, 3])
def test_a_tenant_may_have_a_limit_of_drafts(tmp_path, limit):
    keys = load(tmp_path, [entry(max_draft_tokens=limit)])
    assert keys.tenant_of("Bearer secret").max_draft_tokens == limit


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(ConfigError, match="nowhere"):
        Keys.load(tmp_path / "nowhere")

"""Which gateway a client asks."""

import pytest

from outrider.client.gateways import Gateways


def gateways(targets: str) -> Gateways:
    return Gateways(targets, lambda name: f"channel to {name}", lambda channel: f"stub of {channel}")


@pytest.mark.parametrize(
    ("targets", "names"),
    [
        ("localhost:50051", ["localhost:50051"]),
        ("a:1, b:2,", ["a:1", "b:2"]),
        ("[::1]:1,[::2]:1", ["[::1]:1", "[::2]:1"]),
        ("ipv4:127.0.0.1:1,127.0.0.1:2", ["ipv4:127.0.0.1:1,127.0.0.1:2"]),
        ("dns:///gateway:50051", ["dns:///gateway:50051"]),
    ],
)
def test_gateways_are_named_with_commas_between_unless_grpc_finds_them(
    targets: str, names: list[str]
) -> None:
    assert [gateway.target for gateway in gateways(targets).all] == names


def test_a_target_without_a_name_is_refused() -> None:
    with pytest.raises(ValueError, match="HOST:PORT"):
        gateways(" , ")


def test_the_next_gateway_is_asked_once_one_has_failed() -> None:
    target = gateways("a:1,b:1,c:1")
    asked = []
    for _ in range(4):
        asked.append(target.current)
        target.leave(target.current)
    assert {gateway.target for gateway in asked} == {"a:1", "b:1", "c:1"}
    assert asked[0] is asked[3]


def test_a_late_failure_of_one_that_was_left_already_changes_nothing() -> None:
    target = gateways("a:1,b:1,c:1")
    failed = target.current
    target.leave(failed)
    second = target.current
    target.leave(failed)
    assert target.current is second


def test_clients_with_one_list_share_the_gateways() -> None:
    assert {gateways("a:1,b:1").current.target for _ in range(64)} == {"a:1", "b:1"}

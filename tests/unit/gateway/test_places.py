"""Places shared among tenants."""

from contextlib import ExitStack

import pytest

from outrider.rpc.errors import ResourceExhausted
from services.gateway.places import Places


def places(max_num=8, num_tenants=3):
    return Places(max_num, noun="things", num_tenants=num_tenants)


def fill(stack: ExitStack, shared: Places, tenant: str) -> int:
    """Takes places until one is refused; returns how many there were."""
    for num in range(100):
        try:
            stack.enter_context(shared.one(tenant))
        except ResourceExhausted:
            return num
    raise AssertionError("no bound")


def test_a_place_that_was_given_back_is_free_again():
    shared = places(max_num=1)
    for _ in range(3):
        with shared.one("a"), pytest.raises(ResourceExhausted), shared.one("a"):
            pass


def test_the_only_tenant_has_all_places():
    with ExitStack() as stack:
        assert fill(stack, places(num_tenants=1), "default") == 8


def test_one_of_several_tenants_leaves_room_for_the_others():
    shared = places()
    with ExitStack() as stack:
        assert fill(stack, shared, "a") == 6
        assert fill(stack, shared, "b") == 2


def test_a_tenant_has_half_of_the_places_while_others_have_any():
    shared = places()
    with ExitStack() as stack:
        stack.enter_context(shared.one("b"))
        assert fill(stack, shared, "a") == 4

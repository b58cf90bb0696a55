"""The block pool keeps its invariants whatever happens to it."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from services.scheduler.blocks import BlockPool

NUM_BLOCKS = 6


class BlockPoolMachine(RuleBasedStateMachine):
    """Tables that allocate, share, publish and release blocks in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(num_blocks=NUM_BLOCKS, block_size=4)
        self.tables: list[list[int]] = []

    @rule(count=st.integers(0, NUM_BLOCKS))
    def allocate(self, count: int) -> None:
        count = min(count, self.pool.num_free_blocks)
        self.tables.append(self.pool.allocate(count))

    @precondition(lambda self: self.tables)
    @rule(data=st.data())
    def publish_a_prefix(self, data: st.DataObject) -> None:
        table = data.draw(st.sampled_from(self.tables))
        name = data.draw(st.sampled_from("abc"))
        for index, block_id in enumerate(table):
            self.pool.publish(block_id, f"{name}{index}".encode())

    @rule(name=st.sampled_from("abc"), length=st.integers(0, NUM_BLOCKS))
    def share_a_prefix(self, name: str, length: int) -> None:
        block_ids = self.pool.match(f"{name}{index}".encode() for index in range(length))
        num_left = self.pool.num_free_blocks_beside(block_ids)
        self.pool.share(block_ids)
        assert self.pool.num_free_blocks == num_left
        self.tables.append(block_ids)

    @precondition(lambda self: self.tables)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        index = data.draw(st.integers(0, len(self.tables) - 1))
        table = self.tables.pop(index)
        kept = self.pool.match(f"a{number}".encode() for number in range(2))
        (predicted,) = self.pool.num_free_blocks_as_released([table], kept)
        self.pool.release(table)
        assert predicted == self.pool.num_free_blocks_beside(kept)

    @invariant()
    def every_block_is_in_one_place(self) -> None:
        self.pool.check(self.tables)

    def teardown(self) -> None:
        for table in self.tables:
            self.pool.release(table)
        self.pool.check([])
        assert self.pool.num_free_blocks == NUM_BLOCKS


BlockPoolMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestTheBlockPoolKeepsItsInvariants = BlockPoolMachine.TestCase


def test_a_released_block_is_found_by_its_hash_until_it_is_evicted() -> None:
    pool = BlockPool(num_blocks=2, block_size=4)
    table = pool.allocate(1)
    pool.publish(table[0], b"a")
    pool.release(table)
    assert pool.match([b"a"]) == table
    pool.allocate(2)
    assert pool.match([b"a"]) == []


def test_the_block_unheld_for_longest_is_evicted_first() -> None:
    pool = BlockPool(num_blocks=2, block_size=4)
    first, second = pool.allocate(1), pool.allocate(1)
    pool.publish(first[0], b"first")
    pool.publish(second[0], b"second")
    pool.release(second)
    pool.release(first)
    assert pool.allocate(1) == second


def test_the_end_of_a_prefix_is_evicted_before_its_beginning() -> None:
    pool = BlockPool(num_blocks=2, block_size=4)
    table = pool.allocate(2)
    pool.publish(table[0], b"beginning")
    pool.publish(table[1], b"end")
    pool.release(table)
    pool.allocate(1)
    assert pool.match([b"beginning", b"end"]) == table[:1]


def test_of_equal_blocks_the_first_stays_published() -> None:
    pool = BlockPool(num_blocks=2, block_size=4)
    first, second = pool.allocate(1), pool.allocate(1)
    pool.publish(first[0], b"same")
    pool.publish(second[0], b"same")
    assert pool.match([b"same"]) == first
    pool.release(second)
    pool.check([first])

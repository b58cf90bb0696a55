"""Memories that outlive the drafter: what is kept, for whom, and what is refused."""

import asyncio
import os
import stat
import time
from array import array
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from random import Random

import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st

from services.drafter import snapshot
from services.drafter.forget import main as forget
from services.drafter.memory import SuffixMemory
from services.drafter.snapshot import BadSnapshot, Snapshot
from services.drafter.snapshots import SECONDS_PER_DAY, Snapshots

DAY_AGO = time.time() - SECONDS_PER_DAY


async def memory_with(folder: Path, texts: dict[str, Iterable[int]], **options) -> SuffixMemory:
    """Returns a memory that has learnt a text for each tenant and has been saved."""
    memory = SuffixMemory(16 << 20, **options)
    for tenant, text in texts.items():
        await memory.remember(tenant, array("I", text), 0)
    await Snapshots(memory, folder).save()
    return memory


async def restored(folder: Path, num_bytes: int = 16 << 20, **options) -> SuffixMemory:
    memory = SuffixMemory(num_bytes, **options)
    await Snapshots(memory, folder).restore()
    memory.check()
    return memory


def knows(memory: SuffixMemory, tenant: str, start: int = 0) -> bool:
    found = memory.memory_of(tenant)
    context = array("I", range(start, start + 20))
    return found is not None and found.guess(context, array("I"), 4)[0][:1] == (start + 20,)


def only_file(folder: Path) -> Path:
    (path,) = folder.iterdir()
    return path


def contents(memory: SuffixMemory, tenant: str) -> list[tuple[bytes, int, bytes, int]]:
    found = memory.memory_of(tenant)
    assert found is not None
    texts = [found.text(name) for name in found.texts()]
    return [(t.token_ids, t.num_context_tokens, t.num_repeats, t.used_at) for t in texts]


def usefulness_in(memory: SuffixMemory, tenant: str) -> list[float]:
    found = memory.memory_of(tenant)
    assert found is not None
    return [found.text(name).usefulness for name in found.texts()]


async def test_a_memory_is_restored_as_it_was(tmp_path) -> None:
    memory = await memory_with(tmp_path, {"a": range(5000), "b": range(7000, 7100)})
    again = await restored(tmp_path)
    for tenant in ("a", "b"):
        assert contents(again, tenant) == contents(memory, tenant)
    assert knows(again, "a")
    assert not knows(again, "b")
    assert knows(again, "b", 7000)


async def test_usefulness_is_restored_too(tmp_path) -> None:
    rng, memory = Random(0), SuffixMemory(16 << 20)
    useful, plain = ([rng.randrange(1000) for _ in range(300)] for _ in range(2))
    for text in (useful, plain, useful):
        await memory.remember("a", array("I", text), 0)
    await Snapshots(memory, tmp_path).save()
    before, after = usefulness_in(memory, "a"), usefulness_in(await restored(tmp_path), "a")
    assert after == pytest.approx(before)
    assert before[0] > 1.8 > 1.0 > before[1] > 0.9


async def test_a_smaller_budget_keeps_what_is_most_useful(tmp_path) -> None:
    await memory_with(tmp_path, {"a": range(20_000)})
    memory = await restored(tmp_path, 500_000)
    assert 300_000 < memory.num_bytes <= 500_000


async def test_a_file_is_for_its_owner_alone_and_does_not_tell_the_tenants_name(tmp_path) -> None:
    folder = tmp_path / "below" / "snapshots"
    await Snapshots(SuffixMemory(1 << 20), folder).restore()
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    await memory_with(folder, {"../../tenant": range(100)})
    path = only_file(folder)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert "tenant" not in path.name
    assert knows(await restored(folder), "../../tenant")


async def test_shared_texts_are_not_restored_for_a_tenant_nor_a_tenants_for_all(tmp_path) -> None:
    await memory_with(tmp_path, {"a": range(100)}, share=True)
    apart = await restored(tmp_path)
    assert apart.bytes_by_tenant == {}
    assert knows(await restored(tmp_path, share=True), "anybody")
    only_file(tmp_path).unlink()
    await memory_with(tmp_path, {"(all)": range(100)})
    assert (await restored(tmp_path, share=True)).bytes_by_tenant == {}
    assert knows(await restored(tmp_path), "(all)")


async def test_texts_not_used_for_long_are_neither_kept_nor_restored(tmp_path, monkeypatch) -> None:
    memory = await memory_with(tmp_path, {"a": range(100)})
    assert knows(await restored(tmp_path), "a")
    late = time.time() + 31 * SECONDS_PER_DAY
    monkeypatch.setattr(time, "time", lambda: late)
    assert (await restored(tmp_path)).bytes_by_tenant == {}
    await memory.remember("a", array("I", range(500, 600)), 0)
    await Snapshots(memory, tmp_path).save()
    again = await restored(tmp_path)
    assert not knows(again, "a")
    assert knows(again, "a", 500)


async def test_a_file_that_is_too_old_is_erased(tmp_path) -> None:
    await memory_with(tmp_path, {"a": range(100)})
    long_ago = time.time() - 31 * SECONDS_PER_DAY
    os.utime(only_file(tmp_path), (long_ago, long_ago))
    await Snapshots(SuffixMemory(1 << 20), tmp_path).save()
    assert list(tmp_path.iterdir()) == []


async def test_only_what_has_changed_is_written_again(tmp_path) -> None:
    memory = SuffixMemory(16 << 20)
    snapshots = Snapshots(memory, tmp_path)
    for tenant in ("a", "b"):
        await memory.remember(tenant, array("I", range(100)), 0)
    await snapshots.save()
    before = {path.name: path.stat().st_ino for path in tmp_path.iterdir()}
    await memory.remember("a", array("I", range(200, 300)), 0)
    await snapshots.save()
    changed = [path.name for path in tmp_path.iterdir() if before[path.name] != path.stat().st_ino]
    assert changed == [snapshot.file_name("a", is_shared=False)]


async def test_a_tenant_that_is_erased_is_forgotten_and_others_are_not(tmp_path, capsys) -> None:
    memory = SuffixMemory(16 << 20)
    snapshots = Snapshots(memory, tmp_path)
    for tenant in ("a", "b"):
        await memory.remember(tenant, array("I", range(100)), 0)
    await snapshots.save()
    assert forget(["a", "--snapshot-dir", str(tmp_path)]) == 0
    assert "erased" in capsys.readouterr().out
    await snapshots.save()
    memory.check()
    assert list(memory.bytes_by_tenant) == ["b"]
    assert only_file(tmp_path).name == snapshot.file_name("b", is_shared=False)


async def test_a_tenant_whose_file_somebody_removes_is_forgotten(tmp_path) -> None:
    memory = SuffixMemory(16 << 20)
    snapshots = Snapshots(memory, tmp_path)
    await memory.remember("a", array("I", range(100)), 0)
    await snapshots.save()
    only_file(tmp_path).unlink()
    await snapshots.save()
    assert memory.bytes_by_tenant == {}


async def test_a_tenant_that_was_not_saved_yet_is_erased_too(tmp_path, capsys) -> None:
    memory = SuffixMemory(16 << 20)
    await memory.remember("a", array("I", range(100)), 0)
    assert forget(["a", "--snapshot-dir", str(tmp_path)]) == 0
    assert "held nothing of 'a'" in capsys.readouterr().out
    await Snapshots(memory, tmp_path).save()
    assert memory.bytes_by_tenant == {}
    assert list(tmp_path.iterdir()) == []


async def test_a_tenant_that_is_erased_while_its_file_is_written_stays_erased(tmp_path, monkeypatch) -> None:
    memory = SuffixMemory(16 << 20)
    await memory.remember("a", array("I", range(100)), 0)
    write = snapshot.write

    def erase_then_write(folder: Path, taken: Snapshot) -> None:
        forget(["a", "--snapshot-dir", str(folder)])
        write(folder, taken)

    monkeypatch.setattr(snapshot, "write", erase_then_write)
    await Snapshots(memory, tmp_path).save()
    assert memory.bytes_by_tenant == {}
    assert list(tmp_path.iterdir()) == []


async def test_what_waits_to_be_learnt_of_an_erased_tenant_is_not(tmp_path) -> None:
    memory = SuffixMemory(16 << 20)
    for number in range(3):
        await memory.learn("a", array("I", range(number, number + 5000)), 0)
    await memory.learn("b", array("I", range(5000)), 0)
    learning = asyncio.create_task(memory.run())
    while memory.memory_of("a") is None:  # noqa: ASYNC110
        await asyncio.sleep(0)
    forget(["a", "--snapshot-dir", str(tmp_path)])
    await Snapshots(memory, tmp_path).save()
    while not knows(memory, "b", 4000):  # noqa: ASYNC110
        await asyncio.sleep(0)
    learning.cancel()
    assert list(memory.bytes_by_tenant) == ["b"]


async def test_a_tenant_erased_while_no_drafter_runs_is_gone_with_all_a_crash_has_left(tmp_path) -> None:
    await memory_with(tmp_path, {"a": range(100), "b": range(100)})
    path = tmp_path / snapshot.file_name("a", is_shared=False)
    for suffix in (snapshot.UNFINISHED, snapshot.REFUSED):
        path.with_suffix(suffix).write_bytes(path.read_bytes())
    forget(["a", "--snapshot-dir", str(tmp_path)])
    assert not any(path.with_suffix(suffix).exists() for suffix in (".snapshot", ".unfinished", ".refused"))
    memory = await restored(tmp_path)
    assert list(memory.bytes_by_tenant) == ["b"]
    assert only_file(tmp_path).name == snapshot.file_name("b", is_shared=False)


async def test_unfinished_files_are_swept_at_the_start(tmp_path) -> None:
    (tmp_path / "b.unfinished").write_bytes(b"tokens")
    await restored(tmp_path)
    assert list(tmp_path.iterdir()) == []


async def test_of_a_shared_memory_no_tenant_can_be_erased_but_all_can(tmp_path, capsys) -> None:
    memory = SuffixMemory(16 << 20, share=True)
    snapshots = Snapshots(memory, tmp_path)
    await memory.remember("a", array("I", range(100)), 0)
    await snapshots.save()
    assert forget(["a", "--snapshot-dir", str(tmp_path)]) == 3
    assert "all tenants share" in capsys.readouterr().err
    with structlog.testing.capture_logs() as logs:
        await snapshots.save()
    assert [entry["event"] for entry in logs] == ["tenant_not_erased"]
    assert knows(memory, "a")
    assert forget(["--shared", "--snapshot-dir", str(tmp_path)]) == 0
    await snapshots.save()
    assert memory.bytes_by_tenant == {}
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_not_there_is_named(tmp_path, capsys) -> None:
    assert forget(["a", "--snapshot-dir", str(tmp_path / "none")]) == 1
    assert str(tmp_path / "none") in capsys.readouterr().err


async def test_a_memory_that_was_evicted_and_learnt_anew_is_written_again(tmp_path) -> None:
    memory = SuffixMemory(16 << 20)
    snapshots = Snapshots(memory, tmp_path)
    await memory.remember("a", array("I", range(100)), 0)
    await snapshots.save()
    memory.forget_all("a")
    await memory.remember("a", array("I", range(500, 600)), 0)
    await snapshots.save()
    assert knows(await restored(tmp_path), "a", 500)


async def test_a_folder_open_to_others_is_closed_to_them(tmp_path) -> None:
    tmp_path.chmod(0o755)
    await restored(tmp_path)
    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o700


async def test_a_tenant_whose_file_cannot_be_written_keeps_no_other_from_being_saved(tmp_path) -> None:
    memory = SuffixMemory(16 << 20)
    for tenant in ("a", "b", "c"):
        await memory.remember(tenant, array("I", range(100)), 0)
    path = tmp_path / snapshot.file_name("a", is_shared=False)
    path.with_suffix(snapshot.UNFINISHED).mkdir()
    (tmp_path / "broken.snapshot").symlink_to("/nonexistent")
    with structlog.testing.capture_logs() as logs:
        await Snapshots(memory, tmp_path).save()
    assert [(entry["event"], entry["file"]) for entry in logs] == [("snapshot_not_written", str(path))]
    assert sorted((await restored(tmp_path)).bytes_by_tenant) == ["b", "c"]


async def test_a_snapshot_with_one_wrong_text_is_refused_whole(tmp_path) -> None:
    await memory_with(tmp_path, {"a": range(200)})
    path = only_file(tmp_path)
    body = bytearray(path.read_bytes()[snapshot._START.size :])
    text = snapshot._TEXT.pack(40, 33, 1.0, int(time.time())) + bytes(4 * 40 + 2)
    count_at = snapshot._OWNER.size + 1
    (num_texts,) = snapshot._COUNT.unpack_from(body, count_at)
    snapshot._COUNT.pack_into(body, count_at, num_texts + 1)
    body += text
    path.write_bytes(snapshot._START.pack(snapshot.MAGIC, snapshot.VERSION, snapshot._digest(body)) + body)
    memory = await restored(tmp_path)
    assert memory.bytes_by_tenant == {}
    assert only_file(tmp_path) == path.with_suffix(".refused")


async def test_what_is_learnt_is_saved_at_the_end(tmp_path) -> None:
    memory = SuffixMemory(16 << 20)
    running = asyncio.create_task(Snapshots(memory, tmp_path, seconds=1000).run())
    await asyncio.sleep(0.05)
    await memory.remember("a", array("I", range(100)), 0)
    running.cancel()
    with suppress(asyncio.CancelledError):
        await running
    assert knows(await restored(tmp_path), "a")


async def test_what_is_not_restored_yet_is_not_overwritten(tmp_path) -> None:
    await memory_with(tmp_path, {"a": range(20_000)})
    before = only_file(tmp_path).read_bytes()
    memory = SuffixMemory(16 << 20)
    running = asyncio.create_task(Snapshots(memory, tmp_path).run())
    while memory.memory_of("a") is None:  # noqa: ASYNC110
        await asyncio.sleep(0.001)
    running.cancel()
    with suppress(asyncio.CancelledError):
        await running
    assert only_file(tmp_path).read_bytes() == before


async def test_saving_and_restoring_let_others_work(tmp_path) -> None:
    memory = await memory_with(tmp_path, {"a": range(100_000)})
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count())
    await restored(tmp_path)
    after_restoring = turns
    await memory.remember("a", array("I", [1]), 0)
    await Snapshots(memory, tmp_path).save()
    counting.cancel()
    assert after_restoring > 20
    assert turns > after_restoring


def damaged_by_mode(path: Path) -> None:
    path.chmod(0o644)


def damaged_by_length(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def damaged_by_content(path: Path) -> None:
    path.write_bytes(b"not a snapshot" * 100)


def damaged_by_version(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(snapshot.MAGIC)] += 1
    path.write_bytes(content)


def damaged_by_emptiness(path: Path) -> None:
    path.write_bytes(b"")


def damaged_by_name(path: Path) -> None:
    path.rename(path.with_name(snapshot.file_name("another", is_shared=False)))


def damaged_by_link(path: Path) -> None:
    elsewhere = path.with_suffix(".elsewhere")
    path.rename(elsewhere)
    path.symlink_to(elsewhere)


def damaged_by_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path, 0o600)


def damaged_by_folder(path: Path) -> None:
    path.unlink()
    path.mkdir(mode=0o700)


def damaged_by_size(path: Path) -> None:
    os.truncate(path, 3 << 30)


def damaged_by_holes(path: Path) -> None:
    path.write_bytes(b"")
    os.truncate(path, snapshot.LARGEST_FILE)


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (damaged_by_pipe, "no regular file"),
        (damaged_by_folder, "no regular file"),
        (damaged_by_size, "more than"),
        (damaged_by_holes, "no snapshot"),
        (damaged_by_mode, "mode is 0644"),
        (damaged_by_length, "digest is wrong"),
        (damaged_by_content, "no snapshot"),
        (damaged_by_version, "version is 2"),
        (damaged_by_emptiness, "too short"),
        (damaged_by_name, "another tenant"),
        (damaged_by_link, "symbolic links"),
    ],
)
async def test_a_file_that_cannot_be_trusted_is_refused_by_name_and_reason(tmp_path, damage, reason) -> None:
    await memory_with(tmp_path, {"a": range(100)})
    damage(only_file(tmp_path))
    with structlog.testing.capture_logs() as logs:
        memory = await restored(tmp_path)
    assert memory.bytes_by_tenant == {}
    (refused,) = [entry for entry in logs if entry["event"] == "snapshot_refused"]
    path = Path(refused["file"])
    assert path.parent == tmp_path
    assert reason in refused["reason"]
    # It is kept for whoever looks after it: the next save does not overwrite it.
    assert [path.name for path in tmp_path.glob("*.refused")] == [path.with_suffix(".refused").name]
    assert list(tmp_path.glob("*.snapshot")) == []


async def test_one_refused_file_does_not_keep_others_from_being_restored(tmp_path) -> None:
    await memory_with(tmp_path, {"a": range(100), "b": range(100)})
    damaged_by_length(tmp_path / snapshot.file_name("a", is_shared=False))
    memory = await restored(tmp_path)
    assert list(memory.bytes_by_tenant) == ["b"]


async def test_a_folder_that_cannot_be_written_costs_the_snapshot_alone(tmp_path) -> None:
    (tmp_path / "file").write_text("")
    with structlog.testing.capture_logs() as logs:
        memory = await memory_with(tmp_path / "file", {"a": range(100)})
        await Snapshots(memory, tmp_path / "file").restore()
    assert [entry["event"] for entry in logs] == ["snapshot_not_written", "snapshots_not_read"]
    assert knows(memory, "a")


def some_content() -> bytes:
    async def write() -> bytes:
        memory = SuffixMemory(1 << 20)
        await memory.remember("a", array("I", range(200)), 0)
        found = memory.memory_of("a")
        assert found is not None
        texts = [found.text(name) for name in found.texts()]
        return Snapshot(owner="a", is_shared=False, written_at=1, texts=texts).to_bytes()

    return asyncio.run(write())


CONTENT = some_content()


@given(at=st.integers(0, len(CONTENT) - 1), bit=st.integers(0, 7))
def test_no_flipped_bit_is_overlooked(at, bit) -> None:
    flipped = bytearray(CONTENT)
    flipped[at] ^= 1 << bit
    with pytest.raises(BadSnapshot):
        Snapshot.from_bytes(bytes(flipped))


@given(end=st.integers(0, len(CONTENT) - 1))
def test_no_missing_end_is_overlooked(end) -> None:
    with pytest.raises(BadSnapshot):
        Snapshot.from_bytes(CONTENT[:end])


@given(at=st.integers(0, len(CONTENT)), part=st.binary(max_size=40))
def test_a_malformed_body_with_a_right_digest_is_refused_or_read_but_never_breaks(at, part) -> None:
    body = bytearray(CONTENT[snapshot._START.size :])
    body[at : at + len(part)] = part
    content = snapshot._START.pack(snapshot.MAGIC, snapshot.VERSION, snapshot._digest(body)) + body
    with suppress(BadSnapshot):
        memory = SuffixMemory(1 << 20)
        for text in Snapshot.from_bytes(content).texts:
            with suppress(ValueError):
                memory.restore("a", text)
        memory.check()

"""Pages in files: what was written is read, across processes; what is damaged, cut short, foreign or killed is a miss."""

from __future__ import annotations

import logging
import os
import random
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sapwood.errors import ConfigError
from sapwood.kvcache.storage import StorageOptions, storage_backends
from sapwood.kvcache.storage_file import HEADER, RECORD_HEAD_BYTES, FileStorage

PAGE = 1000
PRINT = b"f" * 32


def key_of(number: int) -> bytes:
    return number.to_bytes(32, "little")


def page_of(number: int) -> bytes:
    return random.Random(number).randbytes(PAGE)


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "kv"


def opened(folder: Path, max_bytes: int = 1 << 20, fingerprint: bytes = PRINT, page_bytes: int = PAGE) -> FileStorage:
    return FileStorage(StorageOptions(str(folder), fingerprint, page_bytes, max_bytes))


def write(storage: FileStorage, *numbers: int) -> None:
    for number in numbers:
        storage.write(key_of(number), memoryview(page_of(number)))


def read(storage: FileStorage, number: int) -> bytes | None:
    into = bytearray(PAGE)
    return bytes(into) if storage.read(key_of(number), memoryview(into)) else None


def test_pages_survive_the_process(folder: Path) -> None:
    first = opened(folder)
    write(first, *range(50))
    write(first, 3)  # known already
    assert [read(first, number) for number in range(51)] == [*map(page_of, range(50)), None]
    first.close()
    second = opened(folder)
    assert [read(second, number) for number in range(50)] == [*map(page_of, range(50))]
    assert second.count_leading([key_of(n) for n in (3, 7, 99, 8)]) == 2
    write(second, 99)
    second.close()
    third = opened(folder)
    assert read(third, 99) == page_of(99) and read(third, 3) == page_of(3)
    third.close()


def test_every_flipped_byte_is_noticed(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    storage = opened(folder)
    write(storage, 1, 2)
    storage.close()
    (path,) = folder.glob("*.kv")
    content = path.read_bytes()
    for position in [*range(0, HEADER.size - 16, 7), *range(HEADER.size, HEADER.size + RECORD_HEAD_BYTES + PAGE, 41)]:
        damaged = bytearray(content)
        damaged[position] ^= 1 << position % 8
        path.write_bytes(damaged)
        storage = opened(folder)
        with caplog.at_level(logging.WARNING):
            assert read(storage, 1) is None
            assert read(storage, 2) in (None, page_of(2))
        storage.close()
    assert "ignored" in caplog.text
    path.write_bytes(content)
    storage = opened(folder)
    assert read(storage, 1) == page_of(1)
    storage.close()


def mangled(content: bytes, chance: random.Random) -> bytes:
    """Something that happens to files: bytes flipped, lost, inserted, zeroed or moved, records exchanged or doubled."""
    record, data = RECORD_HEAD_BYTES + PAGE, bytearray(content)
    a, b = (chance.randrange(len(data)) for _ in range(2))
    low, high = sorted((a, b))
    i, j = (HEADER.size + record * chance.randrange((len(data) - HEADER.size) // record) for _ in range(2))
    match chance.randrange(7):
        case 0:
            for _ in range(chance.randrange(1, 60)):
                data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        case 1:
            del data[low : low + chance.randrange(1, 2 * record)]
        case 2:
            data[low:low] = chance.randbytes(chance.randrange(1, 2 * record))
        case 3:
            data[low:high] = bytes(high - low)
        case 4:
            data[low : low + 500] = data[high : high + 500]
        case 5:
            data[i : i + record], data[j : j + record] = data[j : j + record], data[i : i + record]
        case _:  # a key in front of another page
            data[i : i + 32] = data[j : j + 32]
    return bytes(data)


def test_whatever_happens_to_files_no_wrong_page_is_served(folder: Path) -> None:
    storage = opened(folder, max_bytes=200_000)
    write(storage, *range(30))
    storage.close()
    contents = {path: path.read_bytes() for path in folder.glob("*.kv")}
    chance, num_served = random.Random(7), 0
    for _ in range(150 * max(int(os.environ.get("SAPWOOD_LONG_TESTS", "0")), 1)):
        for path, content in contents.items():
            path.write_bytes(mangled(content, chance) if chance.random() < 0.7 else content)
        storage = opened(folder, max_bytes=200_000)
        for number in range(30):
            page = read(storage, number)
            assert page in (None, page_of(number))
            num_served += page is not None
        storage.close()
    assert num_served > 1000


def test_a_file_that_is_cut_anywhere_serves_what_is_whole(folder: Path) -> None:
    storage = opened(folder)
    write(storage, 1, 2, 3)
    storage.close()
    (path,) = folder.glob("*.kv")
    content = path.read_bytes()
    for length in range(0, len(content), 97):
        path.write_bytes(content[:length])
        storage = opened(folder)
        whole = max(length - HEADER.size, 0) // (RECORD_HEAD_BYTES + PAGE)
        assert [read(storage, number) is not None for number in (1, 2, 3)] == [number <= whole for number in (1, 2, 3)]
        write(storage, 7)  # what comes now goes elsewhere
        assert read(storage, 7) == page_of(7)
        storage.close()
        for other in folder.glob("*.kv"):
            if other != path:
                other.unlink()


def test_pages_of_another_model_are_not_served(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    storage = opened(folder)
    write(storage, 1)
    storage.close()
    other = opened(folder, fingerprint=b"g" * 32)
    assert read(other, 1) is None
    write(other, 2)
    other.close()
    (stolen,) = folder.glob(f"{PRINT.hex()[:16]}*")
    stolen.rename(folder / f"{(b'g' * 32).hex()[:16]}-00000009.kv")  # renamed into its neighbourhood
    with caplog.at_level(logging.WARNING):
        other = opened(folder, fingerprint=b"g" * 32)
    assert read(other, 1) is None and read(other, 2) == page_of(2)
    assert "another model" in caplog.text
    other.close()


def test_the_folder_stays_within_its_size(folder: Path) -> None:
    storage = opened(folder, max_bytes=100_000)
    for number in range(400):
        write(storage, number)
        assert sum(path.stat().st_size for path in folder.glob("*.kv")) <= 100_000
    kept = [number for number in range(400) if read(storage, number) is not None]
    assert kept == list(range(kept[0], 400)) and len(kept) > 75  # the newest
    storage.close()
    other = opened(folder, max_bytes=100_000, fingerprint=b"g" * 32)  # others' pages go as well
    for number in range(100):
        write(other, number)
    assert len(list(folder.glob(f"{PRINT.hex()[:16]}*"))) < 16
    other.close()


def test_two_processes_do_not_share_a_folder(folder: Path) -> None:
    storage = opened(folder)
    with pytest.raises(ConfigError, match="path of its own"):
        opened(folder)
    storage.close()
    opened(folder).close()


def test_a_path_that_cannot_be_used_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(ConfigError, match="choose another path"):
        opened(tmp_path / "file" / "kv")
    assert "file" in storage_backends


def test_a_kill_during_writing_costs_pages_but_never_truth(folder: Path) -> None:
    program = textwrap.dedent("""
        import random, sys
        from sapwood.kvcache.storage import StorageOptions
        from sapwood.kvcache.storage_file import FileStorage
        storage = FileStorage(StorageOptions(sys.argv[1], b"f" * 32, 1000, 1 << 22))
        print("go", flush=True)
        for number in range(int(sys.argv[2]), 10**9):
            storage.write(number.to_bytes(32, "little"), memoryview(random.Random(number).randbytes(1000)))
    """)
    seen, first = 0, 0
    for turn in range(6):
        process = subprocess.Popen([sys.executable, "-c", program, str(folder), str(first)], stdout=subprocess.PIPE)
        assert process.stdout is not None and process.stdout.readline() == b"go\n"
        time.sleep(0.02 + 0.013 * turn)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        process.stdout.close()
        storage = opened(folder, max_bytes=1 << 22)
        for number in range(first, first + 3000):
            page = read(storage, number)
            assert page in (None, page_of(number))
            seen += page is not None
        first += 3000
        storage.close()
    assert seen > 100

"""The GGUF container: what a true file says is read, and what a lying file says is a WeightsError."""

from __future__ import annotations

import struct
from pathlib import Path

import gguf
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from weights_files import header, key_value, tensor_entry, text, write_gguf, write_tiny_gguf

from sapwood.errors import WeightsError
from sapwood.weights.ggml_types import GGML_TYPES
from sapwood.weights.gguf import GgufFile

U8, I8, U16, I16, U32, I32, F32, BOOL, STRING, ARRAY, U64, I64, F64 = range(13)


def array_of(kind: int, count: int, payload: bytes = b"") -> bytes:
    return struct.pack("<IQ", kind, count) + payload


def opened(tmp_path: Path, content: bytes) -> GgufFile:
    path = tmp_path / "made.gguf"
    path.write_bytes(content)
    return GgufFile(path)


def test_type_table_agrees_with_the_reference():
    for type_id, kind in GGML_TYPES.items():
        reference = gguf.GGMLQuantizationType(type_id)
        assert (kind.name, kind.block_size, kind.block_bytes) == (reference.name, *gguf.GGML_QUANT_SIZES[reference])


def test_reads_what_the_reference_writer_wrote(tmp_path):
    values = np.arange(12, dtype=np.float32).reshape(3, 4)
    metadata = {"a.flag": True, "a.count": 7, "a.ratio": 0.5, "a.text": "höher", "a.words": ["x", "", "zz"], "a.ids": [1, -2]}
    file = GgufFile(write_gguf(tmp_path / "m.gguf", "llama", {"t": values, "u": values[0]}, metadata))
    assert file.metadata == {"general.architecture": "llama", **metadata}
    assert file.info("t").shape == (3, 4) and file.info("u").shape == (4,)
    assert np.array_equal(file.raw("t").view(np.float32), values)
    assert file.nbytes == 64


@pytest.mark.parametrize("version", [2, 3])
def test_every_value_type_and_both_versions(tmp_path, version):
    entries = [
        (U8, "B", 200), (I8, "b", -3), (U16, "H", 60_000), (I16, "h", -30_000), (U32, "I", 4_000_000_000), (I32, "i", -5),
        (F32, "f", 0.25), (BOOL, "?", True), (U64, "Q", 2**63 + 1), (I64, "q", -(2**40)), (F64, "d", 1e-9),
    ]  # fmt: skip
    body = b"".join(key_value(f"k{kind}", kind, struct.pack("<" + code, value)) for kind, code, value in entries)
    body += b"".join(
        key_value(f"a{kind}", ARRAY, array_of(kind, 2, struct.pack("<2" + code, value, value))) for kind, code, value in entries
    )
    file = opened(tmp_path, header(0, 2 * len(entries), body, version))
    assert file.metadata == {f"k{kind}": value for kind, _, value in entries} | {
        f"a{kind}": [value] * 2 for kind, _, value in entries
    }


def test_nested_arrays_and_bytes_that_are_no_text(tmp_path):
    raw = struct.pack("<Q", 2) + b"\xff\xfe"
    body = key_value("nested", ARRAY, array_of(ARRAY, 2, array_of(U8, 1, b"\x05") + array_of(U8, 0)))
    body += key_value("tokens", ARRAY, array_of(STRING, 2, text("ok") + raw))
    file = opened(tmp_path, header(0, 2, body))
    assert file.metadata["nested"] == [[5], []]
    assert file.metadata["tokens"][1].encode("utf-8", "surrogateescape") == b"\xff\xfe"


def test_alignment_key_moves_the_data(tmp_path):
    body = key_value("general.alignment", U32, struct.pack("<I", 256)) + tensor_entry("t", (4,))
    content = header(1, 1, body)
    content += bytes(256 - len(content)) + struct.pack("<4f", 1, 2, 3, 4)
    assert opened(tmp_path, content).raw("t").view(np.float32).tolist() == [[1, 2, 3, 4]]


def test_tensors_may_overlap(tmp_path):
    content = header(2, 0, tensor_entry("t", (8,)) + tensor_entry("u", (8,)))
    content += bytes(-len(content) % 32) + bytes(32)
    assert opened(tmp_path, content).nbytes == 64


HUGE = 2**63
LIES = {
    "empty": b"",
    "another format": b"PK\x03\x04" + bytes(40),
    "version 1": header(0, 0, version=1),
    "big-endian": b"GGUF" + struct.pack(">IQQ", 3, 0, 0),
    "tensor count": header(HUGE, 0),
    "tensor count beyond the file": header(1000, 0, bytes(64)),
    "key count": header(0, HUGE),
    "key length": header(0, 1, struct.pack("<Q", HUGE) + bytes(64)),
    "name length": header(1, 0, struct.pack("<Q", 2**20) + bytes(64)),
    "string length": header(0, 1, key_value("k", STRING, struct.pack("<Q", 2**64 - 1)) + bytes(64)),
    "string length just too much": header(0, 1, key_value("k", STRING, struct.pack("<Q", 4) + b"abc")),
    "unknown value type": header(0, 1, key_value("k", 13, bytes(64))),
    "array of an unknown type": header(0, 1, key_value("k", ARRAY, array_of(99, 1, bytes(64)))),
    "array count": header(0, 1, key_value("k", ARRAY, array_of(U8, HUGE, bytes(64)))),
    "array count beyond the file": header(0, 1, key_value("k", ARRAY, array_of(U64, 9, bytes(64)))),
    "array of strings that end early": header(0, 1, key_value("k", ARRAY, array_of(STRING, 2, text("abcdefgh")))),
    "arrays nested too deep": header(0, 1, key_value("k", ARRAY, array_of(ARRAY, 1) * 500 + array_of(U8, 0))),
    "key twice": header(0, 2, key_value("k", U8, b"\x01") * 2),
    "alignment zero": header(0, 1, key_value("general.alignment", U32, struct.pack("<I", 0))),
    "alignment no power of two": header(0, 1, key_value("general.alignment", U32, struct.pack("<I", 48))),
    "alignment huge": header(0, 1, key_value("general.alignment", U64, struct.pack("<Q", HUGE))),
    "alignment a text": header(0, 1, key_value("general.alignment", STRING, text("x"))),
    "no dimensions": header(1, 0, tensor_entry("t", ()) + bytes(64)),
    "five dimensions": header(1, 0, tensor_entry("t", (1,) * 5) + bytes(64)),
    "dimensions without end": header(1, 0, text("t") + struct.pack("<I", 2**32 - 1) + bytes(64)),
    "an empty dimension": header(1, 0, tensor_entry("t", (4, 0)) + bytes(64)),
    "a dimension too large": header(1, 0, tensor_entry("t", (HUGE,)) + bytes(64)),
    "sizes that wrap around": header(1, 0, tensor_entry("t", (2**32, 2**32)) + bytes(64)),
    "unknown tensor type": header(1, 0, tensor_entry("t", (4,), 999) + bytes(64)),
    "half a block": header(1, 0, tensor_entry("t", (48,), 8) + bytes(128)),
    "offset outside": header(1, 0, tensor_entry("t", (4,), 0, 2**40) + bytes(64)),
    "offset that wraps around": header(1, 0, tensor_entry("t", (4,), 0, 2**64 - 32) + bytes(64)),
    "offset not aligned": header(1, 0, tensor_entry("t", (4,), 0, 8) + bytes(64)),
    "tensor twice": header(2, 0, tensor_entry("t", (4,)) * 2 + bytes(64)),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_lying_file_is_refused(tmp_path, lie):
    with pytest.raises(WeightsError, match="made.gguf"):
        opened(tmp_path, LIES[lie])


def test_truncation_anywhere_is_refused(tmp_path):
    write_tiny_gguf(tmp_path / "whole.gguf", changes={"tokenizer.ggml.tokens": ["a", "b"]})
    whole = (tmp_path / "whole.gguf").read_bytes()
    header_bytes = GgufFile(tmp_path / "whole.gguf").header_bytes
    lengths = [*range(0, header_bytes, 7), *range(header_bytes, len(whole), 997), len(whole) - 1]
    for length in lengths:
        with pytest.raises(WeightsError):
            opened(tmp_path, whole[:length])


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_random_damage_opens_or_is_refused(tmp_path, data):
    path = tmp_path / "seed.gguf"
    if not path.exists():
        write_tiny_gguf(path, changes={"tokenizer.ggml.tokens": ["a", "b"]})
    content = bytearray(path.read_bytes())
    end = GgufFile(path).header_bytes
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, end - 1))] = data.draw(st.sampled_from([0, 1, 8, 9, 127, 128, 255]))
    try:
        file = opened(tmp_path, bytes(content))
    except WeightsError as error:
        assert "made.gguf" in error.message
    else:
        assert all(file.raw(name).size == info.nbytes for name, info in file.tensors.items())


def test_fingerprint_follows_content_not_place(tmp_path):
    write_tiny_gguf(tmp_path / "a.gguf")
    content = bytearray((tmp_path / "a.gguf").read_bytes())
    (tmp_path / "b.gguf").write_bytes(content)
    original = GgufFile(tmp_path / "a.gguf")
    assert GgufFile(tmp_path / "b.gguf").fingerprint() == original.fingerprint()
    info = original.info("blk.1.ffn_up.weight")
    content[info.offset : info.offset + info.nbytes] = bytes(info.nbytes)
    (tmp_path / "b.gguf").write_bytes(content)
    assert GgufFile(tmp_path / "b.gguf").fingerprint() != original.fingerprint()


def test_views_outlive_close_and_a_missing_tensor_is_named(tmp_path):
    write_tiny_gguf(tmp_path / "a.gguf")
    file = GgufFile(tmp_path / "a.gguf")
    view = file.raw("output_norm.weight")
    before = view.copy()
    file.close()
    assert np.array_equal(view, before) and not view.flags.writeable
    with pytest.raises(WeightsError, match="no tensor 'nope'"):
        file.info("nope")


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(WeightsError, match=r"none\.gguf"):
        GgufFile(tmp_path / "none.gguf")

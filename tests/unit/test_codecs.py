"""Tiles to bytes and back: predictors, ZSTD frames, checksums."""

import contextlib
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import xxhash
import zstandard
from cog_tools import DTYPES, noise, same_bits
from hypothesis import given
from hypothesis import strategies as st

from cogmill.codecs import cpu
from cogmill.errors import DamagedTileError

SHAPE = (512, 512)


def any_bits(dtype, shape=SHAPE, seed=1):
    raw = np.random.default_rng(seed).bytes(shape[0] * shape[1] * np.dtype(dtype).itemsize)
    return np.frombuffer(raw, dtype=dtype).reshape(shape)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("predictor", [1, 2, 3])
def test_any_bits_survive_each_predictor(dtype, predictor):
    pixels = any_bits(dtype)
    if predictor == 3 and np.dtype(dtype).kind != "f":
        with pytest.raises(ValueError, match="predictor 3"):
            cpu.encode_tile(pixels, predictor, 1)
        with pytest.raises(ValueError, match="predictor 3"):
            cpu.decode_tile(cpu.compress(pixels, 1), dtype, SHAPE, predictor)
        return
    assert same_bits(cpu.decode_tile(cpu.encode_tile(pixels, predictor, 1), dtype, SHAPE, predictor), pixels)


@pytest.mark.parametrize("dtype", DTYPES)
def test_predictor_suits_the_type(dtype):
    assert cpu.predictor_for(dtype) == (3 if "float" in dtype else 2)
    with pytest.raises(ValueError, match="predictor 4"):
        cpu.predict(any_bits(dtype), 4)


def test_predictor_2_is_differences_of_whole_pixels():
    pixels = np.array([[5, 3, 65535], [0, 1, 0]], dtype=np.uint16)
    assert cpu.predict(pixels, 2).tolist() == [[5, 65534, 65532], [0, 1, 65535]]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_predictor_3_is_differences_of_byte_planes_most_significant_first(dtype):
    pixels = any_bits(dtype, (7, 13))
    planes = pixels.astype(pixels.dtype.newbyteorder(">")).view(np.uint8).reshape(7, 13, -1).transpose(0, 2, 1)
    plain = np.ascontiguousarray(planes).reshape(7, -1)
    wanted = np.diff(plain, axis=1, prepend=np.zeros((7, 1), np.uint8))
    assert np.array_equal(cpu.predict(pixels, 3), wanted)


@pytest.mark.parametrize("dtype", ["uint16", "int64", "float32"])
@pytest.mark.parametrize("predictor", [1, 2])
def test_big_endian_tiles(dtype, predictor):
    pixels = any_bits(dtype, (16, 48))
    swapped = cpu.predict(pixels, predictor).byteswap()
    got = cpu.decode_tile(cpu.compress(np.ascontiguousarray(swapped), 1), dtype, (16, 48), predictor, ">")
    assert same_bits(got, pixels)


def test_frames_hold_their_content_size_and_nothing_else():
    frame = cpu.encode_tile(noise("uint16", SHAPE), 2, 9)
    parameters = zstandard.get_frame_parameters(frame)
    assert parameters.content_size == 512 * 512 * 2
    assert parameters.dict_id == 0


def test_frames_without_content_size_are_decoded():
    pixels = noise("int16", SHAPE)
    frame = zstandard.ZstdCompressor(write_content_size=False).compress(pixels.tobytes())
    assert same_bits(cpu.decode_tile(frame, "int16"), pixels)


def damaged_frames():
    plain = np.zeros(512 * 512, np.uint8).tobytes()
    compress = zstandard.ZstdCompressor(write_content_size=False).compress
    good = compress(plain)
    return {
        "empty": b"",
        "garbage": b"garbage, not ZSTD",
        "cut": good[:-3],
        "followed": good + b"\0",
        "two frames": compress(plain[:1000]) + compress(plain[1000:]),
        "too short": compress(plain[:-1]),
        "too long": compress(plain + b"\0"),
        "declares less": cpu.compress(plain[:-1], 1),
        "declares a terabyte": bytes.fromhex("28b52ffd") + b"\xe0" + (1 << 40).to_bytes(8, "little") + b"\1\0\0",
        "skippable": (0x184D2A50).to_bytes(4, "little") + (4).to_bytes(4, "little") + b"abcd",
        "skippable, of a tile's size": (0x184D2A50).to_bytes(4, "little") + (1 << 18).to_bytes(4, "little") + plain,
    }


@pytest.mark.parametrize("what", damaged_frames())
def test_damaged_frames_are_errors(what):
    with pytest.raises(DamagedTileError):
        cpu.decode_tile(damaged_frames()[what], "uint8")


@given(position=st.integers(0, 10**6), flip=st.integers(1, 255))
def test_a_changed_byte_is_wrong_pixels_or_an_error_never_a_crash(position, flip):
    frame = bytearray(cpu.encode_tile(np.arange(64 * 64, dtype=np.uint16).reshape(64, 64) ** 2, 2, 3))
    frame[position % len(frame)] ^= flip
    with contextlib.suppress(DamagedTileError):
        assert cpu.decode_tile(bytes(frame), "uint16", (64, 64), 2).shape == (64, 64)


def test_masks_are_single_bits_leftmost_highest():
    valid = np.zeros((2, 10), np.uint8)
    valid[0, 0], valid[1, 9] = 1, 255
    assert cpu.packed_mask(valid).tolist() == [[128, 0], [0, 64]]
    assert np.array_equal(cpu.decode_mask(cpu.compress(cpu.packed_mask(valid), 3), (2, 10)), np.where(valid, 255, 0))


def test_checksums_are_xxh3_of_the_little_endian_bytes():
    pixels = noise("float64", SHAPE)
    assert cpu.pixel_digest_tile(pixels) == xxhash.xxh3_64_intdigest(pixels.astype("<f8").tobytes())
    assert cpu.tile_checksum(memoryview(b"abc")) == xxhash.xxh3_64_intdigest(b"abc")
    digests = np.array([[1, 2]], dtype=np.uint64)
    assert cpu.pixel_digest(digests) == xxhash.xxh3_128_hexdigest(bytes([1, *[0] * 7, 2, *[0] * 7]))


def test_threads_give_the_same_bytes():
    tiles = [noise("uint16", SHAPE, seed) >> 8 for seed in range(6)]
    wanted = [cpu.encode_tile(tile, 2, 9) for tile in tiles]
    with ThreadPoolExecutor(4) as pool:
        encoded = list(pool.map(lambda tile: cpu.encode_tile(tile, 2, 9), tiles))
        decoded = list(pool.map(lambda data: cpu.decode_tile(data, "uint16", SHAPE, 2), encoded))
    assert encoded == wanted
    assert all(same_bits(a, b) for a, b in zip(decoded, tiles, strict=True))

"""The CPU kernel: validity, float32 arithmetic, packing, counts; the same bits for any threads and windows."""

import itertools
import multiprocessing
import os
import pickle
import random
import subprocess
import sys
import threading

import numpy as np
import pytest

from cogmill.indices import parse_formula
from cogmill.kernels import _CacheFile, coords, resample
from cogmill.kernels import cpu as kernels_cpu
from cogmill.kernels.codegen import float32_literal, python_lines, steps
from cogmill.kernels.cpu import (
    BAND_DTYPES,
    BandInput,
    Kernel,
    Output,
    PlaneInput,
    PlaneKernel,
    WarpKernel,
    tile_stats,
)

NAN_BITS = 0x7FC00000
NDVI = parse_formula("(nir - red) / (nir + red)")


def bands(dtype="uint16", nodata=None, scale=1.0, offset=0.0, names=("red", "nir")):
    return tuple(BandInput(name, dtype, nodata, scale, offset) for name in names)


def run(inputs, outputs, pixels, valid=None, clear=None, threads=1):
    """Products and counts of whole arrays."""
    outputs = tuple(outputs)
    pixels = [np.atleast_2d(p) for p in pixels]
    out = [np.full(pixels[0].shape, 77, o.dtype) for o in outputs]
    counts = Kernel(inputs, outputs, threads)(pixels, valid or [None] * len(pixels), clear, out)
    return out, counts


def ndvi(red, nir, dtype="uint16", nodata=None, **output):
    """NDVI of two lists of numbers: values, counts."""
    outputs = [Output("ndvi", NDVI, **output)]
    out, counts = run(bands(dtype, nodata), outputs, [np.array(red, dtype), np.array(nir, dtype)])
    return out[0][0], counts[0].tolist()


def bits(array):
    return array.view(f"u{array.dtype.itemsize}")


# --- integer traps ---------------------------------------------------------------------------------------------------


def test_uint16_does_not_underflow_or_overflow():
    found, counts = ndvi(red=[3000, 40000, 65535, 1], nir=[1000, 30000, 1, 65535])
    assert found.tolist() == np.float32([-0.5, -1 / 7, -65534 / 65536, 65534 / 65536]).tolist()
    assert counts == [4, 0, 0, 0]


def test_uint8_does_not_underflow_or_overflow():
    found, _ = ndvi(red=[150, 240], nir=[200, 16], dtype="uint8")
    assert found.tolist() == np.float32([1 / 7, -0.875]).tolist()


@pytest.mark.parametrize("dtype", ["int8", "int16", "int32", "int64"])
def test_signed_extremes(dtype):
    low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
    outputs = [Output("p", parse_formula("-red")), Output("q", parse_formula("nir - red"))]
    (p, q), _ = run(bands(dtype), outputs, [np.array([low], dtype), np.array([high], dtype)])
    assert p[0, 0] == np.float32(-float(low))
    assert q[0, 0] == np.float32(high) - np.float32(low)


@pytest.mark.parametrize("dtype", ["int64", "uint64", "uint32", "int32"])
def test_wide_integers_are_rounded_once(dtype):
    # by way of float64, 2**54 + 2**30 + 1 would land on the tie and then on the even neighbour
    number = 2**54 + 2**30 + 1 if dtype.endswith("64") else 2**30 + 2**6 + 1
    (p,), _ = run(bands(dtype, names=("red",)), [Output("p", parse_formula("red"))], [np.array([number], dtype)])
    assert int(p[0, 0]) == {True: 2**54 + 2**31, False: 2**30 + 2**7}[dtype.endswith("64")]


# --- validity --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dtype", "nodata", "holes"),
    [
        ("uint16", 0, [0]),
        ("uint16", 65535, [65535]),
        ("uint16", 65535.0, [65535]),
        ("uint8", 255, [255]),
        ("int16", -9999, [-9999]),
        ("int8", -128, [-128]),
        ("int32", -(2**31), [-(2**31)]),
        ("int64", 2**53 + 1, [2**53 + 1]),
        ("uint64", 2**64 - 1, [2**64 - 1]),
        ("float32", -9999, [-9999, np.nan]),
        ("float32", float("nan"), [np.nan]),
        ("float32", -3.4028234663852886e38, [np.finfo("f4").min]),
        ("float32", -3.40282347e38, [np.finfo("f4").min]),
        ("float32", 0.1, [np.float32(0.1)]),
        ("float64", -9999, [-9999, np.nan]),
        ("float64", -1.7976931348623157e308, [np.finfo("f8").min]),
    ],
)
def test_nodata_is_invalid_in_either_band(dtype, nodata, holes):
    for hole in holes:
        for red, nir in [(hole, 4), (4, hole), (hole, hole)]:
            found, counts = ndvi(red=[2, red, 2], nir=[6, nir, 6], dtype=dtype, nodata=nodata)
            assert found[[0, 2]].tolist() == [0.5, 0.5]
            assert bits(found)[1] == NAN_BITS
            assert counts == [2, 1, 0, 0]


@pytest.mark.parametrize(
    ("dtype", "nodata", "pixel"),
    [
        ("uint16", -9999, 55537),  # -9999 modulo 65536
        ("uint8", 256, 0),
        ("uint8", -1, 255),
        ("int8", 255, -1),
        ("int16", 65535, -1),
        ("uint16", 0.5, 0),
        ("uint16", float("nan"), 0),
        ("int32", float("-inf"), -(2**31)),
        ("int64", 2**53, 2**53 + 1),  # equal in float64
        ("uint64", 2**64, 0),
        ("float32", -9999.5, -9999),
        ("float64", 0.1, float(np.float32(0.1))),
    ],
)
def test_nodata_out_of_the_dtype_never_matches(dtype, nodata, pixel):
    outputs = [Output("p", parse_formula("red + 1"))]
    _, counts = run(bands(dtype, nodata, names=("red",)), outputs, [np.array([pixel], dtype)])
    assert counts.tolist() == [[1, 0, 0, 0]]


def test_each_band_has_its_own_nodata():
    inputs = (BandInput("red", "uint16", 0), BandInput("nir", "uint16", 65535))
    out, counts = run(inputs, [Output("ndvi", NDVI)], [np.uint16([0, 65535, 5]), np.uint16([5, 5, 65535])])
    assert np.isnan(out[0][0]).tolist() == [True, False, True]
    assert counts.tolist() == [[1, 2, 0, 0]]


def test_only_the_bands_of_a_product_make_it_invalid():
    inputs = bands("uint16", 0)
    outputs = [Output("ndvi", NDVI), Output("p", parse_formula("nir + 0"))]
    _, counts = run(inputs, outputs, [np.uint16([0, 5]), np.uint16([5, 5])])
    assert counts.tolist() == [[1, 1, 0, 0], [2, 0, 0, 0]]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_nan_and_infinity_of_the_input_are_invalid(dtype):
    bad = np.array([np.nan, -np.nan, np.inf, -np.inf], dtype)
    # 0 * x, x**0 and 1 / x would hide them
    for formula in ("red * 0", "red ** 0", "1 / red", "red"):
        out, counts = run(bands(dtype, names=("red",)), [Output("p", parse_formula(formula))], [bad])
        assert set(bits(out[0]).ravel().tolist()) == {NAN_BITS}
        assert counts.tolist() == [[0, 4, 0, 0]]


def test_values_beyond_float32_are_invalid():
    outputs = [Output("p", parse_formula("1 / red"))]
    _, counts = run(bands("float64", names=("red",)), outputs, [np.array([1e39, -1e300, 3.4e38])])
    assert counts.tolist() == [[1, 2, 0, 0]]
    _, counts = run(bands("uint8", scale=1e300, names=("red",)), outputs, [np.uint8([1, 0])])
    assert counts.tolist() == [[0, 2, 0, 1]]


def test_zero_denominators_are_invalid_and_counted():
    red, nir = np.float32([0, 3, -3, 1]), np.float32([0, -3, 3, 3])
    out, counts = run(bands("float32"), [Output("ndvi", NDVI)], [red, nir])
    assert bits(out[0]).tolist()[0][:3] == [NAN_BITS] * 3
    assert counts.tolist() == [[1, 3, 0, 3]]
    out, counts = run(bands("float32"), [Output("ndvi", NDVI, "int16", 1e-4, 0, -32768)], [red, nir])
    assert out[0].tolist() == [[-32768, -32768, -32768, 5000]]
    assert counts.tolist() == [[1, 3, 0, 3]]


def test_roots_of_negative_numbers_are_invalid():
    outputs = [Output("p", parse_formula("red ** 0.5")), Output("q", parse_formula("red ** 0.3"))]
    _, counts = run(bands("int16", names=("red",)), outputs, [np.int16([-4, 4])])
    assert counts.tolist() == [[1, 1, 0, 1], [1, 1, 0, 1]]


def test_masks_of_bands_and_of_the_scene():
    red, nir = np.uint16([[1, 1, 1, 1]]), np.uint16([[3, 3, 3, 3]])
    outputs = [Output("ndvi", NDVI), Output("p", parse_formula("nir"))]
    mask, clear = np.uint8([[0, 255, 1, 255]]), np.uint8([[1, 1, 0, 1]])
    for valid, scene, wanted in [
        ([mask, None], None, [3, 4]),
        ([None, mask], None, [3, 3]),
        ([mask, mask], clear, [2, 2]),
        ([None, None], clear, [3, 3]),
        ([mask, None], clear, [2, 3]),
    ]:
        _, counts = run(bands(), outputs, [red, nir], valid, scene)
        assert counts[:, 0].tolist() == wanted


def test_nan_has_one_bit_pattern():
    payload = np.uint32([0x7F800001, 0xFFC00000, 0xFFFFFFFF, 0x7FC12345, 0xFF800000]).view(np.float32)
    rng = np.random.default_rng(3)
    pixels = rng.normal(0, 1, (70, 5000)).astype(np.float32)
    pixels[rng.random(pixels.shape) < 0.3] = 0
    pixels.ravel()[rng.integers(0, pixels.size, 50000)] = payload[rng.integers(0, 5, 50000)]
    formulas = ["red / red", "-red", "red - red / red", "red ** 0.5", "red ** -1.5", "-(red ** -3)", "red"]
    outputs = [Output(f"p{i}", parse_formula(text)) for i, text in enumerate(formulas)]
    out, counts = run(bands("float32", names=("red",)), outputs, [pixels])
    for product, count in zip(out, counts, strict=True):
        invalid = ~np.isfinite(product)
        assert set(bits(product)[invalid].tolist()) == {NAN_BITS}
        assert count[1] == invalid.sum()
        assert count[0] == pixels.size - invalid.sum()


# --- arithmetic ------------------------------------------------------------------------------------------------------


def test_radiometry_is_rounded_once():
    stored = np.arange(65536, dtype=np.uint16)
    outputs = [Output("p", parse_formula("red"))]
    for scale, offset in [(1e-4, -0.1), (2.75e-5, -0.2), (1.0, -0.1), (1e-4, 0.0)]:
        out, _ = run(bands(scale=scale, offset=offset, names=("red",)), outputs, [stored])
        assert np.array_equal(out[0][0], (stored.astype(np.float64) * scale + offset).astype(np.float32))


def random_pixels(dtype, shape, seed):
    rng = np.random.default_rng(seed)
    if dtype.startswith("float"):
        return rng.normal(0, 3000, shape).astype(dtype)
    limits = np.iinfo(dtype)
    return rng.integers(limits.min, limits.max, shape, dtype, endpoint=True)


@pytest.mark.parametrize("dtype", BAND_DTYPES)
@pytest.mark.parametrize("scaled", [False, True])
def test_equal_to_a_float64_reference_within_float32_rounding(dtype, scaled):
    scale, offset = (2.75e-5, -0.2) if scaled else (1.0, 0.0)
    red, nir = random_pixels(dtype, (37, 211), 1), random_pixels(dtype, (37, 211), 2)
    if dtype.endswith("int64"):
        red, nir = red >> 20, nir >> 20  # the square below is beyond float32 otherwise
    nodata = red[0, 0].item()
    outputs = [Output("ndvi", NDVI), Output("evi", parse_formula("2.5 * (nir - red) / (nir + 6 * red + 1) ** 2"))]
    out, counts = run(bands(dtype, nodata, scale, offset), outputs, [red, nir])
    # what a band is worth is rounded to float32 once; the rest here is float64
    r, n = ((x.astype(np.float64) * scale + offset).astype(np.float32).astype(np.float64) for x in (red, nir))
    known = (red != red.dtype.type(nodata)) & (nir != nir.dtype.type(nodata))
    denominator = n + 6 * r + 1
    with np.errstate(all="ignore"):
        wanted = (n - r) / (n + r)
        evi = 2.5 * (n - r) / denominator**2
        size = (np.abs(n) + 6 * np.abs(r) + 1) / np.abs(denominator)
    good = known & np.isfinite(wanted)
    assert np.array_equal(np.isfinite(out[0]), good)
    # three roundings of at most 2**-24
    assert (np.abs(out[0] - wanted)[good] <= 3.01 * 2**-24 * np.abs(wanted)[good]).all()
    # the denominator cancels: its error follows the size of its terms
    close = known & (size < 100)
    assert (np.abs(out[1] - evi)[close] <= np.abs(evi[close]) * (8 + 6 * size[close]) * 2**-24).all()
    assert counts[0].tolist() == [good.sum(), (~good).sum(), 0, (known & ~good).sum()]


def random_formula(rng, depth):
    if depth == 0 or rng.random() < 0.15:
        return rng.choice(["red", "nir", "blue", "0.1", "2.5", "1e-3", "10000", "7"])
    if rng.random() < 0.15:
        return f"-{random_formula(rng, depth - 1)}"
    left, right = random_formula(rng, depth - 1), random_formula(rng, depth - 1)
    text = f"{left} {rng.choice('+-*/')} {right}"
    return f"({text})" if rng.random() < 0.6 else text


def test_formulas_are_ieee_float32_in_order_bit_for_bit():
    rng = random.Random(20)
    # numpy takes a Python number for a float32 beside a float32 array, and computes one operation at a time
    formulas = [f"(red * 0 + {random_formula(rng, 4)})" for _ in range(30)]
    outputs = [Output(f"p{i}", parse_formula(text)) for i, text in enumerate(formulas)]
    names = ("red", "nir", "blue")
    pixels = [np.random.default_rng(i).normal(0.3, 0.4, (11, 5003)).astype(np.float32) for i in range(3)]
    out, _ = run(bands("float32", names=names), outputs, pixels)
    literal = {"__builtins__": {}, "n": np.float32}
    for text, product in zip(formulas, out, strict=True):
        source = text
        for number in ("0.1", "2.5", "1e-3", "10000", "7"):
            source = source.replace(number, f"n({number})")
        source = source.replace("red * 0", "red * n(0)")
        with np.errstate(all="ignore"):
            wanted = eval(source, literal, dict(zip(names, pixels, strict=True)))
        wanted = np.where(np.isfinite(wanted), wanted, np.float32(np.nan))
        known = ~np.isnan(wanted)
        assert wanted.dtype == np.float32
        assert np.array_equal(bits(product)[known], bits(wanted)[known]), text
        assert np.isnan(product[~known]).all()


@pytest.mark.parametrize("exponent", [0, 1, 2, 3, 5, 7, 13, 64, -1, -2, -3, -13])
def test_integer_powers_are_one_chain(exponent):
    x = np.random.default_rng(1).normal(1, 0.3, (1, 999)).astype(np.float32)
    outputs = [Output("p", parse_formula(f"red ** {exponent}"))]
    (found,), _ = run(bands("float32", names=("red",)), outputs, [x])
    wanted = np.ones_like(x) if exponent == 0 else x
    for bit in bin(abs(exponent))[3:]:
        wanted = wanted * wanted
        wanted = wanted * x if bit == "1" else wanted
    with np.errstate(all="ignore"):
        wanted = np.float32(1) / wanted if exponent < 0 else wanted
    known = np.isfinite(wanted)
    assert np.array_equal(bits(found)[known], bits(wanted)[known])


def test_other_powers():
    x = np.abs(np.random.default_rng(1).normal(1, 0.3, (1, 9999))).astype(np.float32)
    texts = ("red ** 0.5", "red ** 1.7", "red ** -0.5", "2 ** red", "red ** nir", "red ** (1 / 3)", "red ** -(-2)")
    outputs = [Output(f"p{i}", parse_formula(text)) for i, text in enumerate(texts)]
    found, _ = run(bands("float32"), outputs, [x, x[:, ::-1].copy()])
    assert np.array_equal(found[0], np.sqrt(x))
    wide = x.astype(np.float64)
    for product, wanted in [
        (found[1], wide ** float(np.float32(1.7))),
        (found[2], wide**-0.5),
        (found[3], 2**wide),
        (found[4], wide ** wide[:, ::-1]),
        (found[5], wide ** float(np.float32(1) / np.float32(3))),
    ]:
        # in float64, rounded once: half a unit of float32 and a little of float64
        assert np.abs(product / wanted - 1).max() <= 2**-24 * 1.001
    assert np.array_equal(found[6], x * x)


def test_literals_are_rounded_to_float32():
    x = np.random.default_rng(1).normal(0, 1, (1, 999)).astype(np.float32)
    (found,), _ = run(bands("float32", names=("red",)), [Output("p", parse_formula("red * 0.1"))], [x])
    assert np.array_equal(found, x * np.float32(0.1))
    assert float32_literal(0.1) == float(np.float32(0.1))


def test_denormal_numbers_are_kept():
    tiny = np.float32([[1e-40, 3e-45]])
    (found,), _ = run(bands("float32", names=("red",)), [Output("p", parse_formula("red * 1"))], [tiny])
    assert np.array_equal(found, tiny)


# --- packing ---------------------------------------------------------------------------------------------------------


def packed(values, dtype, nodata, scale=1.0, offset=0.0):
    outputs = [Output("p", parse_formula("red"), dtype, scale, offset, nodata)]
    out, counts = run(bands("float32", names=("red",)), outputs, [np.float32(values)])
    return out[0][0].tolist(), counts[0].tolist()


def test_packed_rounding_is_half_up():
    values = [0.5, 1.5, 2.5, -0.5, -1.5, -2.5, 0.49999997, -0.50000006, 1.4999999]
    assert packed(values, "int16", -32768)[0] == [1, 2, 3, 0, -1, -2, 0, -1, 1]
    assert packed([-0.5, -0.4, 0.4, 254.5], "uint8", 255) == ([0, 0, 0, 254], [4, 0, 1, 0])


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16", "int32", "uint32"])
def test_packed_values_are_clamped_and_counted(dtype):
    limits = np.iinfo(dtype)
    inside = 5 if limits.min == 0 else -5
    for nodata, low, high in [(limits.min, limits.min + 1, limits.max), (limits.max, limits.min, limits.max - 1)]:
        values = [-3e38, 3e38, float("nan"), inside, limits.min, np.nextafter(np.float32(limits.max), np.float32(0))]
        stored, counts = packed(values, dtype, nodata)
        assert stored[:4] == [low, high, nodata, inside]
        assert stored[4] == low
        clamped = (
            2 + (nodata == limits.min) + (nodata == stored[5] + 1 and dtype in ("int8", "uint8", "int16", "uint16"))
        )
        assert counts == [5, 1, clamped, 0]


@pytest.mark.parametrize(
    ("nodata", "wanted"), [(7, 6), (0, -1), (-32768, -32767), (32767, 32766), (-1, -2), (-32767, -32768)]
)
def test_valid_values_never_become_nodata(nodata, wanted):
    stored, counts = packed([nodata, nodata + 0.25, nodata - 0.25, float("nan"), 100], "int16", nodata)
    assert stored == [wanted, wanted, wanted, nodata, 100]
    assert counts == [4, 1, 3, 0]


def test_clamped_values_never_become_nodata():
    assert packed([-1e9, 1e9], "int16", -32768) == ([-32767, 32767], [2, 0, 2, 0])
    assert packed([-1e9, 1e9], "int16", 32767) == ([-32768, 32766], [2, 0, 2, 0])


def test_packed_scale_and_offset():
    values = np.random.default_rng(2).uniform(-1, 1, 5000).astype(np.float32)
    for scale, offset in [(1e-4, 0.0), (1e-4, -0.1), (0.005, -1.0), (-1e-4, 0.3)]:
        stored, counts = packed(values, "int16", -32768, scale, offset)
        q = np.floor((values.astype(np.float64) - offset) / scale + 0.5)
        assert stored == np.clip(q, -32767, 32767).astype(int).tolist()
        assert counts == [5000, 0, 0, 0]
        assert np.abs(np.array(stored) * scale + offset - values).max() <= abs(scale) * 0.5001


def test_packed_infinity_is_nodata():
    assert packed([1, 2], "int16", -1, scale=1e-320) == ([-1, -1], [0, 2, 0, 2])


def test_a_bare_band_keeps_whole_numbers_that_float32_rounds():
    numbers = np.int32([[2**24 + 1, -(2**24) - 3, 2**31 - 2, 7, 0]])
    output = Output("p", parse_formula("red"), "int32", nodata=0)
    (p, q), counts = run(bands("int32", 7, names=("red",)), [output, Output("q", parse_formula("red"))], [numbers])
    assert p.tolist() == [[2**24 + 1, -(2**24) - 3, 2**31 - 2, 0, -1]]
    assert np.array_equal(q, np.where(numbers == 7, np.nan, numbers.astype(np.float32)), equal_nan=True)
    assert counts.tolist() == [[4, 1, 1, 0], [4, 1, 0, 0]]


def test_a_bare_band_is_rounded_once_when_packed():
    # rounded to float32 first, these would be ties or beyond them
    stored = np.uint16(np.arange(1, 60001)[None])
    output = Output("p", parse_formula("red"), "uint16", 0.001, 0, 0)
    (p,), _ = run(bands("uint16", scale=0.0012345, offset=0.1, names=("red",)), [output], [stored])
    assert np.array_equal(p, np.floor((stored.astype(np.float64) * 0.0012345 + 0.1) / 0.001 + 0.5).clip(0, 65535))


# --- planes ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["uint8", "int16", "int32", "float32", "float64"])
@pytest.mark.parametrize("scaled", [False, True])
def test_planes_hold_what_the_kernel_calls_valid(dtype, scaled):
    scale, offset = (2.75e-5, -0.2) if scaled else (1.0, 0.0)
    pixels = random_pixels(dtype, (37, 211), 1)
    if dtype.startswith("float"):
        pixels[0, :3] = np.nan, np.inf, -np.inf
    nodata = pixels[1, 1].item()
    rng = np.random.default_rng(2)
    valid, clear = (rng.random(pixels.shape) > 0.1).astype(np.uint8), (rng.random(pixels.shape) > 0.2).astype(np.uint8)
    band = BandInput("red", dtype, nodata, scale, offset)
    known = (pixels != nodata) & np.isfinite(pixels.astype(np.float64))
    wanted = pixels.astype(np.float64) * scale + offset if scaled else pixels.astype(np.float64)
    wide = dtype in ("int32", "float64")
    for mask, fit in [(None, None), (valid, clear)]:
        plane = PlaneKernel(band, 2)(pixels, mask, fit)
        good = known if mask is None else known & (valid != 0) & (clear != 0)
        assert plane.dtype == (np.float64 if wide else np.float32)
        assert np.array_equal(plane, np.where(good, wanted, np.nan).astype(plane.dtype), equal_nan=True)


def test_wrong_arrays_for_a_plane_are_refused():
    kernel = PlaneKernel(BandInput("red", "uint16"))
    good = np.ones((2, 3), np.uint16)
    for arguments, words in [
        ((good.astype("u1"), None, None), "band 'red' is uint8"),
        ((good, good[:1].astype("u1"), None), r"mask of band 'red' is uint8 \(1, 3\)"),
        ((good, None, good), "scene mask is uint16"),
        ((good[0], None, None), "1 dimensions"),
    ]:
        with pytest.raises(ValueError, match=words):
            kernel(*arguments)


# --- warp ------------------------------------------------------------------------------------------------------------

WARPED = (
    *(Output(method, parse_formula(method)) for method in resample.METHODS),
    Output("ndvi", parse_formula("(cubic - bilinear) / (cubic + bilinear)")),
    Output("packed", parse_formula("(cubic - bilinear) / (cubic + bilinear)"), "int16", 1e-4, 0, -32768),
    Output("bare", parse_formula("lanczos"), "uint8", 1, 0, 0),
)
MOVES = [(1, 0, 0, 0, 1, 0), (0.5, 0, 0.25, 0, 0.5, 0.125)]


@pytest.fixture(scope="module")
def warp():
    """A kernel with every method, its planes on two rasters, and what it makes of a whole target."""
    rng = np.random.default_rng(6)
    planes = [rng.normal(100, 60, shape).astype(dtype) for shape, dtype in [((90, 80), "f4"), ((45, 40), "f8")]]
    for plane in planes:
        plane[rng.random(plane.shape) < 0.1] = np.nan
        plane.flags.writeable = False  # as the kernel takes them: no second compilation
    inputs = tuple(
        PlaneInput(method, planes[i % 2].dtype.name, method, planes[i % 2].shape)
        for i, method in enumerate(resample.METHODS)
    )
    kernel = WarpKernel(inputs, WARPED, 1)
    affine = (0.02, 0.01, -1.0, -0.004, 1.1, 5.0)
    return kernel, [planes[i % 2] for i in range(9)], [MOVES[i % 2] for i in range(9)], affine, (80, 4200)


def warped(kernel, planes, moves, affine, window):
    centres, corners = (coords.affine_coordinates(affine, window, what) for what in (False, True))
    parts, origins = [], []
    for plane, move, wanted in zip(planes, moves, kernel.planes, strict=True):
        x, y = corners if wanted.by_area else centres
        row, col, rows, cols = resample.source_window(wanted.method, x, y, plane.shape, move)
        parts.append(plane[row : row + rows, col : col + cols])
        origins.append((row, col))
    out = [np.full(window[2:], 77, output.dtype) for output in kernel.outputs]
    return out, kernel(parts, origins, moves, centres, corners, out)


def test_the_warp_is_the_resampled_value_then_formula_and_packing(warp):
    kernel, planes, moves, affine, (rows, cols) = warp
    out, counts = warped(kernel, planes, moves, affine, (0, 0, rows, cols))
    values = {}
    for plane, (a, b, c, d, e, f), method in zip(planes, moves, resample.METHODS, strict=True):
        area = method in resample.AREA_METHODS
        x, y = coords.affine_coordinates(affine, (0, 0, rows, cols), area)
        x, y = (a * x + b * y) + c, (d * x + e * y) + f
        values[method] = np.empty((rows, cols))
        for r, line in enumerate(values[method]):
            ends = [x[r + 1, 1:].copy(), y[r + 1, 1:].copy()] if area else []
            lines = [x[r, :cols].copy(), y[r, :cols].copy(), *ends]
            assert resample.FUNCTIONS[method](line, plane, 0, 0, *plane.shape, *lines) == 0
        assert 0.05 < np.isnan(values[method]).mean() < 0.9
    for product, method in zip(out, resample.METHODS, strict=False):
        assert np.array_equal(product, values[method].astype(np.float32), equal_nan=True)
        assert set(bits(product)[np.isnan(product)].tolist()) == {NAN_BITS}
    cubic, bilinear = (values[name].astype(np.float32) for name in ("cubic", "bilinear"))
    with np.errstate(all="ignore"):
        ndvi = (cubic - bilinear) / (cubic + bilinear)
    assert np.array_equal(out[9], ndvi, equal_nan=True)
    packed = np.clip(np.floor(ndvi.astype(np.float64) / 1e-4 + 0.5), -32767, 32767)
    assert np.array_equal(out[10], np.where(np.isnan(ndvi), -32768, packed))
    bare = np.clip(np.floor(values["lanczos"] + 0.5), 1, 255)
    assert np.array_equal(out[11], np.where(np.isnan(values["lanczos"]), 0, bare))
    known = np.array(
        [(~np.isnan(p) if o.nodata is None else p != o.nodata).sum() for p, o in zip(out, WARPED, strict=True)]
    )
    assert counts[:, 0].tolist() == known.tolist()
    assert (counts[:, 0] + counts[:, 1] == rows * cols).all()


@pytest.mark.parametrize("threads", [1, 3])
def test_the_warp_has_the_same_bits_for_any_windows_and_threads(warp, threads):
    kernel, planes, moves, affine, (rows, cols) = warp
    wanted, wanted_counts = warped(kernel, planes, moves, affine, (0, 0, rows, cols))
    many, total = WarpKernel(kernel.planes, kernel.outputs, threads), np.zeros_like(wanted_counts)
    for (top, bottom), (left, right) in itertools.product([(0, 1), (1, 50), (50, rows)], [(0, 90), (90, cols)]):
        out, counts = warped(many, planes, moves, affine, (top, left, bottom - top, right - left))
        total += counts
        for part, whole in zip(out, wanted, strict=True):
            assert np.array_equal(bits(part), bits(whole[top:bottom, left:right]))
    assert np.array_equal(total, wanted_counts)


def test_the_warp_refuses_planes_that_lack_pixels(warp):
    kernel, planes, moves, affine, _ = warp
    window = (20, 1000, 3, 50)
    centres, corners = (coords.affine_coordinates(affine, window, what) for what in (False, True))
    out = [np.empty(window[2:], output.dtype) for output in kernel.outputs]
    parts = [plane[25:30] if i == 2 else plane for i, plane in enumerate(planes)]
    origins = [(25, 0) if i == 2 else (0, 0) for i in range(9)]
    with pytest.raises(
        ValueError, match=r"pixels of plane 'cubic' \(cubic\) outside of the \(5, 80\) given from \(25, 0\)"
    ):
        kernel(parts, origins, moves, centres, corners, out)


def test_wrong_arguments_of_the_warp_are_refused(warp):
    kernel, planes, moves, affine, _ = warp
    window, zero = (20, 1000, 3, 50), [(0, 0)] * 9
    centres, corners = (coords.affine_coordinates(affine, window, what) for what in (False, True))
    out = [np.empty(window[2:], output.dtype) for output in kernel.outputs]
    for arguments, words in [
        ((planes[:8], zero, moves, centres, corners, out), "there are 8 planes, 9 origins, 9 affines and 12 products"),
        (([planes[1], *planes[1:]], zero, moves, centres, corners, out), "plane 'nearest' is float64"),
        ((planes, [(1, 0), *zero[1:]], moves, centres, corners, out), r"'nearest' is \(90, 80\) from \(1, 0\) on"),
        ((planes, zero, moves, None, corners, out), "coordinates of centres are missing"),
        ((planes, zero, moves, centres, None, out), "coordinates of corners are missing"),
        ((planes, zero, moves, corners, corners, out), r"coordinates of centres is float64 \(4, 51\)"),
        ((planes, zero, moves, centres, corners, [out[0][:2], *out[1:]]), "product 'bilinear' is float32"),
    ]:
        with pytest.raises(ValueError, match=words):
            kernel(*arguments)
    for make, words in [
        (lambda: PlaneInput("red", "uint8", "nearest", (1, 1)), "plane 'red' has dtype uint8"),
        (lambda: PlaneInput("red", "float32", "spline", (1, 1)), "method spline; one of nearest, bilinear"),
        (lambda: WarpKernel(kernel.planes[:1], WARPED), "names band 'bilinear'; there are nearest"),
    ]:
        with pytest.raises(ValueError, match=words):
            make()


def test_a_changed_resampler_is_another_kernel(warp, monkeypatch):
    kernel = warp[0]
    before = kernels_cpu._warp_source(kernel.planes, kernel.outputs)
    monkeypatch.setattr(kernels_cpu, "_digest", lambda path: "of a changed file")
    assert kernels_cpu._warp_source(kernel.planes, kernel.outputs) != before


# --- the same bits ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def scene():
    rng = np.random.default_rng(11)
    shape = (301, 9001)
    pixels = [rng.integers(0, 12000, shape, dtype=np.uint16) for _ in range(3)]
    for band in pixels:
        band[rng.random(shape) < 0.1] = 0
    valid = [(rng.random(shape) > 0.1).astype(np.uint8) * 255, None, None]
    clear = (rng.random(shape) > 0.2).astype(np.uint8)
    inputs = bands("uint16", 0, 1e-4, -0.1, ("red", "nir", "blue"))
    outputs = (
        Output("ndvi", NDVI),
        Output("packed", NDVI, "int16", 1e-4, 0.0, -32768),
        Output("evi", parse_formula("2.5 * (nir - red) / (nir + 6 * red - 7.5 * blue + 1)"), "uint8", 0.01, 0, 255),
        Output("power", parse_formula("nir ** 1.3 - red ** 3 + blue ** 0.5")),
    )
    out = [np.empty(shape, o.dtype) for o in outputs]
    counts = Kernel(inputs, outputs, 1)(pixels, valid, clear, out)
    return inputs, outputs, pixels, valid, clear, out, counts


@pytest.mark.parametrize("threads", [1, 2, 3, 7, None])
def test_same_bits_for_any_number_of_threads(scene, threads):
    inputs, outputs, pixels, valid, clear, wanted, wanted_counts = scene
    out = [np.empty_like(a) for a in wanted]
    counts = Kernel(inputs, outputs, threads)(pixels, valid, clear, out)
    assert np.array_equal(counts, wanted_counts)
    for a, b in zip(out, wanted, strict=True):
        assert np.array_equal(bits(a), bits(b))


@pytest.mark.parametrize("seed", range(6))
def test_same_bits_for_any_windows(scene, seed):
    inputs, outputs, pixels, valid, clear, wanted, wanted_counts = scene
    rng = np.random.default_rng(seed)
    rows, cols = clear.shape
    row_edges = [0, *sorted(rng.choice(np.arange(1, rows), rng.integers(0, 9), replace=False).tolist()), rows]
    col_edges = [0, *sorted(rng.choice(np.arange(1, cols), rng.integers(0, 9), replace=False).tolist()), cols]
    out = [np.empty_like(a) for a in wanted]
    total = np.zeros_like(wanted_counts)
    kernel = Kernel(inputs, outputs, int(rng.integers(1, 3)))
    for (top, bottom), (left, right) in itertools.product(itertools.pairwise(row_edges), itertools.pairwise(col_edges)):
        window = np.s_[top:bottom, left:right]
        # views into the scene: neither rows nor columns are contiguous
        total += kernel(
            [p[window] for p in pixels],
            [None if v is None else v[window] for v in valid],
            clear[window],
            [o[window] for o in out],
        )
    assert np.array_equal(total, wanted_counts)
    for a, b in zip(out, wanted, strict=True):
        assert np.array_equal(bits(a), bits(b))


def test_all_products_in_one_pass_equal_each_alone(scene):
    inputs, outputs, pixels, valid, clear, wanted, wanted_counts = scene
    for output, product, count in zip(outputs, wanted, wanted_counts, strict=True):
        out = [np.empty_like(product)]
        counts = Kernel(inputs, (output,), 2)(pixels, valid, clear, out)
        assert np.array_equal(bits(out[0]), bits(product))
        assert np.array_equal(counts[0], count)


def test_read_only_and_fortran_arrays(scene):
    inputs, outputs, pixels, valid, clear, wanted, _ = scene
    frozen = [np.frombuffer(p.tobytes(), p.dtype).reshape(p.shape) for p in pixels]
    out = [np.empty_like(a, order="F") for a in wanted]
    Kernel(inputs, outputs, 2)(frozen, valid, np.asfortranarray(clear), out)
    for a, b in zip(out, wanted, strict=True):
        assert np.array_equal(a, b, equal_nan=True)


def test_windows_of_one_row_one_column_one_pixel_none():
    for shape in [(1, 7), (7, 1), (1, 1), (0, 5), (5, 0), (3, 4095), (3, 4097)]:
        out, counts = run(bands(), [Output("ndvi", NDVI)], [np.ones(shape, np.uint16)] * 2, threads=2)
        assert counts.tolist() == [[shape[0] * shape[1], 0, 0, 0]]
        assert (out[0] == 0).all()


def test_calls_from_several_threads_at_once(scene):
    inputs, outputs, pixels, valid, clear, wanted, _ = scene
    kernel = Kernel(inputs, outputs, 2)
    results = [[np.empty_like(a) for a in wanted] for _ in range(4)]
    callers = [threading.Thread(target=kernel, args=(pixels, valid, clear, out)) for out in results]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    for out in results:
        assert all(np.array_equal(a, b, equal_nan=True) for a, b in zip(out, wanted, strict=True))


def _in_child(queue):
    out, _ = run(
        bands(), [Output("ndvi", NDVI)], [np.full((9, 9), 1, np.uint16), np.full((9, 9), 3, np.uint16)], threads=2
    )
    queue.put(float(out[0][8, 8]))


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_works_in_a_forked_child_after_work_in_the_parent():
    # Numba's own threading layers end such a child
    context = multiprocessing.get_context("fork")
    queue = context.SimpleQueue()
    run(bands(), [Output("ndvi", NDVI)], [np.ones((9, 9), np.uint16)] * 2, threads=2)
    child = context.Process(target=_in_child, args=(queue,))
    child.start()
    child.join(60)
    assert child.exitcode == 0
    assert queue.get() == 0.5


# --- refusals --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: BandInput("red", "complex64"), "band 'red' has dtype complex64"),
        (lambda: BandInput("red", "uint8", scale=float("nan")), "scale nan"),
        (lambda: Output("ndvi", NDVI, "float64"), "product 'ndvi' has dtype float64"),
        (lambda: Output("ndvi", NDVI, "int16"), "nodata None"),
        (lambda: Output("ndvi", NDVI, "uint8", nodata=-1), "nodata -1"),
        (lambda: Output("ndvi", NDVI, "int16", 0, 0, 1), "scale 0"),
        (lambda: Output("ndvi", NDVI, "float32", 1e-4), "for packed integers"),
        (lambda: Kernel(bands(names=("red", "red")), (Output("ndvi", NDVI),)), "one name"),
        (
            lambda: Kernel(bands(names=("red", "blue")), (Output("ndvi", NDVI),)),
            "names band 'nir'; there are red, blue",
        ),
        (lambda: Kernel(bands(), ()), "no product"),
    ],
)
def test_impossible_requests_are_refused(make, words):
    with pytest.raises(ValueError, match=words):
        make()


def test_wrong_arrays_are_refused():
    kernel = Kernel(bands(), (Output("ndvi", NDVI),))
    good, out = np.ones((2, 3), np.uint16), np.ones((2, 3), np.float32)
    for pixels, valid, clear, target, words in [
        ([good], [None], None, [out], "2 bands and 1 products"),
        ([good, good.astype("i2")], [None] * 2, None, [out], "band 'nir' is int16"),
        ([good, good.astype(">u2")], [None] * 2, None, [out], "band 'nir' is >u2"),
        ([good, good[:1]], [None] * 2, None, [out], r"band 'nir' is uint16 \(1, 3\)"),
        ([good, good], [None, good > 0], None, [out], "mask of band 'nir' is bool"),
        ([good, good], [None] * 2, good, [out], "scene mask is uint16"),
        ([good, good], [None] * 2, None, [out.astype("f8")], "product 'ndvi' is float64"),
        ([good, good], [None] * 2, None, [out[0]], "1 dimensions"),
    ]:
        with pytest.raises(ValueError, match=words):
            kernel(pixels, valid, clear, target)


# --- generated code --------------------------------------------------------------------------------------------------


def test_nothing_that_a_user_wrote_gets_into_generated_code():
    # hostile names cannot come from a sheet; the generator does not rely on that
    hostile = "x\n    import os; os.abort()\n#"
    formula = parse_formula("evil_name_1 * 2")
    assert "evil" not in "\n".join(python_lines(steps(formula, {"evil_name_1": "x0"})[0]))
    inputs = (BandInput("evil_name_1", "uint8"), BandInput(hostile, "uint8"))
    outputs = (Output(hostile, formula),)
    source = kernels_cpu._source(inputs, outputs, (False, False), (False, False), False)
    assert "evil" not in source
    assert "os" not in source.replace("cogmill", "").split()
    out, _ = run(inputs, outputs, [np.uint8([4]), np.uint8([4])])
    assert out[0].tolist() == [[8]]


def test_python_keywords_and_builtins_as_band_names():
    formula = parse_formula("NAN + f4 * np - x1")
    names = ("NAN", "f4", "np", "x1")
    out, _ = run(bands("uint8", names=names), [Output("p", formula)], [np.uint8([i]) for i in (1, 2, 3, 4)])
    assert out[0].tolist() == [[3]]


def test_names_of_products_and_radiometry_need_no_new_compilation():
    one = Kernel(bands("uint16", 0, 1e-4, -0.1), (Output("ndvi", NDVI),))
    two = Kernel(bands("uint16", 7, 2e-5, -0.2), (Output("other", NDVI),))
    masks = (False, False)
    assert one._compiled(masks, False) is two._compiled(masks, False)


CHILD = """
import os, sys, time, hashlib
import numpy as np
from cogmill.indices import parse_formula
from cogmill.kernels import cache_folder
from cogmill.kernels.cpu import BandInput, Kernel, Output
bands = (BandInput("red", "uint16", 0), BandInput("nir", "uint16", 0))
outputs = (Output("ndvi", parse_formula("(nir - red) / (nir + red)"), "int16", 1e-4, 0.0, -32768),)
pixels = np.arange(40000, dtype=np.uint16).reshape(200, 200)
out = np.empty((200, 200), np.int16)
ready = sys.argv[1:]
if ready:
    open(ready[0], "w").close()
    while not all(map(os.path.exists, ready)):
        time.sleep(0.001)
kernel = Kernel(bands, outputs, 2)
kernel([pixels, pixels[::-1].copy()], [None, None], None, [out])
stats = kernel._compiled((False, False), False).stats
print(hashlib.sha256(out.tobytes()).hexdigest(), sum(stats.cache_hits.values()), cache_folder())
"""


def child(tmp_path, *arguments, **environment):
    env = {k: v for k, v in os.environ.items() if k not in ("NUMBA_CACHE_DIR", "XDG_CACHE_HOME", "COGMILL_CACHE")}
    return subprocess.Popen(
        [sys.executable, "-c", CHILD, *map(str, arguments)],
        env={**env, **{k: str(v) for k, v in environment.items()}},
        stdout=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
    )


def answer(process):
    text, _ = process.communicate(timeout=120)
    assert process.returncode == 0
    return text.split(maxsplit=2)


def test_two_processes_make_the_same_kernel_at_once(tmp_path):
    cache, ready = tmp_path / "cache", [tmp_path / "a", tmp_path / "b"]
    both = [child(tmp_path, *order, COGMILL_CACHE=cache) for order in (ready, ready[::-1])]
    first, second = map(answer, both)
    assert first[0] == second[0]
    assert len(list((cache / "kernels").iterdir())) == 1
    # the next process finds it compiled
    assert answer(child(tmp_path, COGMILL_CACHE=cache))[:2] == [first[0], "1"]


def test_a_damaged_cache_is_made_again(tmp_path):
    cache = tmp_path / "cache"
    wanted = answer(child(tmp_path, COGMILL_CACHE=cache))[0]
    (code,), (index,) = cache.rglob("*.nbc"), cache.rglob("*.nbi")
    for path, damage in [(code, code.read_bytes()[:100]), (index, b"")]:
        path.write_bytes(damage)
        assert answer(child(tmp_path, COGMILL_CACHE=cache))[:2] == [wanted, "0"]
        assert answer(child(tmp_path, COGMILL_CACHE=cache))[:2] == [wanted, "1"]
    (source,) = (cache / "kernels").iterdir()
    source.write_text("raise SystemExit(3)\n")
    assert answer(child(tmp_path, COGMILL_CACHE=cache))[0] == wanted


def test_an_unwritable_cache_folder_is_replaced_by_a_private_one(tmp_path):
    (tmp_path / "file").write_text("a file, so that no folder can be made below it")
    (tmp_path / "tmp").mkdir()
    found = answer(child(tmp_path, COGMILL_CACHE=tmp_path / "file" / "cache", TMPDIR=tmp_path / "tmp"))
    assert found[2].startswith(str(tmp_path / "tmp"))
    assert list((tmp_path / "tmp").iterdir()) == []  # gone with the process


@pytest.mark.parametrize(
    ("environment", "wanted"),
    [
        ({"COGMILL_CACHE": "own", "XDG_CACHE_HOME": "/nowhere"}, "own"),
        ({"XDG_CACHE_HOME": "{tmp}/xdg"}, "xdg/cogmill"),
        ({"XDG_CACHE_HOME": "relative", "HOME": "{tmp}/home"}, "home/.cache/cogmill"),
        ({"HOME": "{tmp}/home"}, "home/.cache/cogmill"),
    ],
)
def test_the_cache_folder_follows_the_environment(tmp_path, environment, wanted):
    environment = {k: v.format(tmp=tmp_path) for k, v in environment.items()}
    assert answer(child(tmp_path, **environment))[2].strip() == str(tmp_path / wanted)


def test_racing_processes_never_load_each_others_code(tmp_path):
    stamp = (1.0, 10)
    one, two = (_CacheFile(str(tmp_path), "f", stamp) for _ in range(2))
    # both have read the empty index; then they save different signatures, and one index is lost
    empty = two._load_index
    one.save("float32", "code of float32")
    two._load_index = dict
    two.save("int16", "code of int16")
    two._load_index = empty
    for file, key in itertools.product((one, two), ("float32", "int16")):
        assert file.load(key) in (None, f"code of {key}")
    upgraded = _CacheFile(str(tmp_path), "f", (2.0, 10))
    upgraded._save_index({})
    assert upgraded.load("int16") is None
    upgraded._save_data = lambda name, data: (_ for _ in ()).throw(OSError("disk full"))
    upgraded.save("int16", "new code")
    assert upgraded.load("int16") is None


# --- statistics ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "int8", "uint8", "int16", "uint16", "int32", "uint32"])
def test_tile_statistics(dtype):
    tile = random_pixels(dtype, (512, 300), 4)
    nodata = tile[3, 3].item()
    n, low, high, total = tile_stats(tile, nodata)
    known = tile[tile != tile.dtype.type(nodata)].astype(np.float64)
    assert (n, low, high) == (known.size, known.min(), known.max())
    serial = 0.0
    for value in known:
        serial += value
    assert total == serial
    assert tile_stats(tile[::2, 1:-1], nodata)[0] == (tile[::2, 1:-1] != tile.dtype.type(nodata)).sum()


def test_tile_statistics_leave_nan_and_nodata_out():
    tile = np.float32([[1, np.nan, np.inf], [-9999, 3, -np.inf]])
    assert tile_stats(tile, -9999) == (2, 1, 3, 4)
    assert tile_stats(tile, None) == (3, -9999, 3, -9995)
    assert tile_stats(tile, float("nan")) == (3, -9999, 3, -9995)
    assert tile_stats(np.uint8([[1, 255]]), -9999) == (2, 1, 255, 256)


def test_tile_statistics_without_a_valid_pixel():
    n, low, high, total = tile_stats(np.full((2, 2), -32768, np.int16), -32768)
    assert (n, total) == (0, 0)
    assert np.isnan([low, high]).all()


def test_bands_and_outputs_can_be_pickled():
    output = Output("ndvi", NDVI, "int16", 1e-4, 0, -32768)
    assert pickle.loads(pickle.dumps((bands(), output))) == (bands(), output)

"""Overviews against a plain Python statement of their rules."""

import math

import numpy as np
import pytest
from cog_tools import DTYPES, noise, same_bits
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from cogmill.kernels.overviews import KINDS, reduce2

CONSTANT_NAN = {"float32": 0x7FC00000, "float64": 0x7FF8000000000000}


def taps(pixels, valid, nodata, i, j):
    found = []
    for r in range(2 * i, min(2 * i + 2, pixels.shape[0])):
        for c in range(2 * j, min(2 * j + 2, pixels.shape[1])):
            value = pixels[r, c]
            masked = valid is not None and not valid[r, c]
            if not masked and value == value and (nodata is None or value != pixels.dtype.type(nodata)):
                found.append(value)
    return found


def mean(values, dtype):
    total = 0.0
    for value in values:
        total += float(value)
    result = total / len(values)
    if dtype.kind == "f":
        with np.errstate(over="ignore"):
            return dtype.type(min(max(result, min(map(float, values))), max(map(float, values))))
    result = math.floor(result + 0.5)
    return dtype.type(min(max(result, int(min(values))), int(max(values))))


def mode(values):
    counts, best, top = {}, None, 0
    for value in values:
        counts[value] = counts.get(value, 0) + 1
        if counts[value] > top:
            best, top = value, counts[value]
    return best


def reference(pixels, valid, nodata, kind):
    rows, cols = -(-pixels.shape[0] // 2), -(-pixels.shape[1] // 2)
    out, out_valid = np.empty((rows, cols), pixels.dtype), np.zeros((rows, cols), np.uint8)
    empty = nodata if nodata is not None else math.nan if pixels.dtype.kind == "f" else 0
    for i in range(rows):
        for j in range(cols):
            if kind == "bits":
                out[i, j] = pixels[2 * i, 2 * j]
                out_valid[i, j] = 255 if valid is not None and valid[2 * i, 2 * j] else 0
                continue
            values = taps(pixels, valid, nodata, i, j)
            out_valid[i, j] = 255 if values else 0
            if not values:
                out[i, j] = empty
                continue
            out[i, j] = mean(values, pixels.dtype) if kind == "continuous" else mode(values)
            if kind == "continuous" and nodata is not None and out[i, j] == pixels.dtype.type(nodata):
                if pixels.dtype.kind == "f":
                    out[i, j] = np.nextafter(out[i, j], pixels.dtype.type(np.inf))
                else:
                    out[i, j] += pixels.dtype.type(1)
    return out, None if valid is None else out_valid


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_rules(dtype, kind, data):
    shape = data.draw(st.tuples(st.integers(1, 5), st.integers(1, 5)))
    few = [0, 1, 2, 3, 100] if np.dtype(dtype).kind != "f" else [0.0, 1.5, -2.25, 3.1, math.nan]
    value = st.sampled_from(few)
    if data.draw(st.booleans()):
        value = hnp.from_dtype(np.dtype(dtype), allow_infinity=False, allow_subnormal=True)
    pixels = data.draw(hnp.arrays(dtype, shape, elements=value))
    nodata = data.draw(st.sampled_from([None, few[1], *([math.nan] if np.dtype(dtype).kind == "f" else [])]))
    valid = data.draw(st.none() | hnp.arrays(np.uint8, shape, elements=st.sampled_from([0, 1, 255])))
    got, got_valid = reduce2(pixels, valid, nodata, kind)
    want, want_valid = reference(pixels, valid, nodata, kind)
    assert np.array_equal(got, want, equal_nan=np.dtype(dtype).kind == "f"), (got, want)
    assert (got_valid is None) == (want_valid is None)
    assert got_valid is None or np.array_equal(got_valid, want_valid)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_constant_field_stays_constant(dtype):
    for value in (np.iinfo(dtype).max, np.iinfo(dtype).min) if "int" in dtype else (0.1, np.finfo(dtype).max, -1e-40):
        pixels = np.full((6, 6), value, dtype)
        half, _ = reduce2(pixels, None, None, "continuous")
        assert (half == pixels[0, 0]).all()


def test_mean_rounds_half_up():
    assert reduce2(np.array([[1, 2]], np.int16), None, None, "continuous")[0].tolist() == [[2]]
    assert reduce2(np.array([[-1, -2]], np.int16), None, None, "continuous")[0].tolist() == [[-1]]


def test_mean_of_bright_pixels_does_not_overflow():
    assert reduce2(np.full((2, 2), 65535, np.uint16), None, None, "continuous")[0].tolist() == [[65535]]


def test_64_bit_values_beyond_float64_stay_in_the_range_of_their_pixels():
    top = np.iinfo(np.uint64).max
    pixels = np.array([[top, top - 1], [top - 2, top - 1]], np.uint64)
    value = int(reduce2(pixels, None, None, "continuous")[0][0, 0])
    assert top - 2 <= value <= top


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_one_constant_nan(dtype):
    pixels = np.array([[np.inf, -np.inf, np.nan, np.nan]], dtype)
    pixels.view(f"u{pixels.itemsize}")[0, 2:] |= 1  # NaNs with a payload
    half, _ = reduce2(pixels, None, None, "continuous")
    assert half.view(f"u{half.itemsize}").tolist() == [[CONSTANT_NAN[dtype]] * 2]


def test_mean_never_becomes_nodata():
    pixels = np.array([[6, 8, 254, 255]], np.uint8)
    assert reduce2(pixels, None, 7, "continuous")[0].tolist() == [[8, 255]]
    assert reduce2(pixels, None, 254, "continuous")[0].tolist() == [[7, 255]]
    assert reduce2(np.array([[-1.0, 1.0]], np.float32), None, 0.0, "continuous")[0][0, 0] == np.float32(1e-45)


def test_nodata_does_not_bleed():
    pixels = np.array([[-9999, 100], [100, 100]], np.int16)
    assert reduce2(pixels, None, -9999, "continuous")[0].tolist() == [[100]]


def test_classes_take_the_first_to_reach_the_top_count():
    pixels = np.array([[4, 9], [9, 4]], np.uint8)
    assert reduce2(pixels, None, None, "classes")[0].tolist() == [[9]]
    assert reduce2(np.array([[4, 9], [3, 8]], np.uint8), None, None, "classes")[0].tolist() == [[4]]


def test_classes_and_bits_never_make_new_values():
    pixels = noise("uint8", (33, 65))
    for kind in ("classes", "bits"):
        assert set(np.unique(reduce2(pixels, None, None, kind)[0])) <= set(np.unique(pixels))


def test_views_are_read_right():
    pixels = noise("int16", (40, 60))
    part, whole = pixels[3:17, 5:29], np.ascontiguousarray(pixels[3:17, 5:29])
    for kind in KINDS:
        assert same_bits(reduce2(part, None, None, kind)[0], reduce2(whole, None, None, kind)[0])


def test_unknown_kinds_are_refused():
    with pytest.raises(ValueError, match="cubic"):
        reduce2(np.zeros((2, 2)), None, None, "cubic")

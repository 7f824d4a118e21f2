"""Masks: classes and bits of quality bands, and nodata in a band's own dtype."""

import numpy as np
import pytest

from cogmill.errors import ConfigError, SceneError
from cogmill.masks import MaskRule, clear, native_nodata, nodata_in

INTEGERS = ["uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64"]


@pytest.mark.parametrize(
    ("nodata", "dtype", "wanted"),
    [
        (None, "uint16", None),
        (0, "uint16", 0),
        (65535, "uint16", 65535),
        (65535.0, "uint16", 65535),
        (-9999, "uint16", None),
        (65536, "uint16", None),
        (-1, "uint8", None),
        (256, "uint8", None),
        (0.5, "uint8", None),
        (float("nan"), "uint16", None),
        (float("inf"), "int16", None),
        (-9999, "int16", -9999),
        (-32769, "int16", None),
        (-128, "int8", -128),
        (255, "int8", None),
        (2**63 - 1, "int64", 2**63 - 1),
        (2**63, "int64", None),
        (2**53 + 1, "int64", 2**53 + 1),
        (2**64 - 1, "uint64", 2**64 - 1),
        (-1, "uint64", None),
        (1e300, "uint64", None),
        (float("nan"), "float32", None),
        (float("-inf"), "float32", None),
        (-9999, "float32", -9999.0),
        (-3.4028234663852886e38, "float32", np.finfo("f4").min),
        (-3.40282347e38, "float32", np.finfo("f4").min),
        (1e300, "float32", None),
        (1e300, "float64", 1e300),
        (0.1, "float32", np.float32(0.1)),
        (10**400, "uint64", None),
        (10**400, "float32", None),
        (np.float32(0.5), "uint8", None),
    ],
)
def test_nodata_in_the_native_dtype(nodata, dtype, wanted):
    found = native_nodata(nodata, dtype)
    if wanted is None:
        assert found is None
    else:
        assert found == wanted
        assert found.dtype == dtype


@pytest.mark.parametrize(
    ("value", "dtype", "held"),
    [
        (-9999.0, "uint8", None),
        (255.0, "uint8", 255),
        (0.5, "int16", None),
        (float("nan"), "int16", None),
        (float("inf"), "uint8", None),
        (float("inf"), "float32", float("inf")),
        (0.1, "float32", float(np.float32(0.1))),
        (1e300, "float32", None),
        (10**400, "float64", None),
        (2**63, "uint64", 2**63),
    ],
)
def test_a_number_as_a_pixel_holds_it(value, dtype, held):
    found = nodata_in(value, dtype)
    assert found == held and type(found) is type(held)
    assert np.isnan(nodata_in(float("nan"), "float32"))


@pytest.mark.parametrize("dtype", INTEGERS)
def test_classes_of_any_integer_dtype(dtype):
    pixels = np.arange(12, dtype=dtype).reshape(3, 4)
    found = clear(pixels, MaskRule("scl", classes=(3, 8, 9, 10, 300, -2)), nodata=0)
    assert found.dtype == np.uint8
    assert found.tolist() == [[0, 1, 1, 0], [1, 1, 1, 1], [0, 0, 0, 1]]


def test_bits_of_landsat_quality():
    # QA_PIXEL: fill 0, dilated cloud 1, cloud 3, shadow 4
    pixels = np.array([[1, 21824, 22280, 23888, 2, 65535]], np.uint16)
    found = clear(pixels, MaskRule("qa_pixel", bits=(0, 3, 4)), nodata=1)
    assert found.tolist() == [[0, 1, 0, 0, 1, 0]]


@pytest.mark.parametrize("dtype", INTEGERS)
def test_the_highest_bit_of_any_dtype(dtype):
    bits = 8 * np.dtype(dtype).itemsize
    pixels = np.zeros((1, 2), f"u{bits // 8}")
    pixels[0, 1] = 1 << (bits - 1)
    assert clear(pixels.view(dtype), MaskRule("qa", bits=(bits - 1,))).tolist() == [[1, 0]]


@pytest.mark.parametrize("dtype", ["uint8", "int8", "uint16", "int16", "uint32", "int32"])
def test_a_bit_that_the_dtype_lacks_is_an_error(dtype):
    beyond = 8 * np.dtype(dtype).itemsize
    with pytest.raises(SceneError, match=rf"no bit {beyond}.*masks\.qa\.bits") as caught:
        clear(np.zeros((1, 2), dtype), MaskRule("qa", bits=(beyond,)))
    assert caught.value.reason == "mask_rule"


def test_negative_classes():
    pixels = np.array([[-1, -128, 127, 0]], np.int8)
    assert clear(pixels, MaskRule("q", classes=(-1, 255)), nodata=-128).tolist() == [[0, 0, 1, 1]]


def test_float_bands():
    pixels = np.array([[0, 1, np.nan, 2]], np.float32)
    assert clear(pixels, MaskRule("q", classes=(1,)), nodata=2).tolist() == [[1, 0, 0, 0]]
    with pytest.raises(SceneError, match="no bits") as caught:
        clear(pixels, MaskRule("q", bits=(1,)))
    assert caught.value.reason == "mask_rule"


def test_complex_bands_are_refused():
    with pytest.raises(SceneError, match="complex64"):
        clear(np.zeros((1, 1), np.complex64), MaskRule("q", classes=(1,)))


def test_any_layout_in_memory():
    rng = np.random.default_rng(5)
    whole = rng.integers(0, 12, (40, 60), dtype=np.uint16)
    rule = MaskRule("q", classes=(3, 7), bits=(3,))
    wanted = clear(whole, rule, 0)
    assert np.array_equal(clear(whole[::2, 1:], rule, 0), wanted[::2, 1:])
    assert np.array_equal(clear(np.asfortranarray(whole), rule, 0), wanted)
    whole.flags.writeable = False
    assert np.array_equal(clear(whole, rule, 0), wanted)


def test_table_and_comparison_agree():
    pixels = np.arange(65536, dtype=np.uint16).reshape(256, 256)
    rule = MaskRule("q", classes=(5, 1000), bits=(2, 15))
    assert np.array_equal(clear(pixels, rule, 77), clear(pixels.astype(np.uint32), rule, 77))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "masks nothing"),
        ({"classes": (1.5,)}, "1.5 found"),
        ({"classes": (True,)}, "True found"),
        ({"bits": (64,)}, "0 to 63"),
        ({"bits": (-1,)}, "-1 found"),
        ({"bits": ("3",)}, "'3' found"),
    ],
)
def test_impossible_rules_are_refused(options, words):
    with pytest.raises(ConfigError, match=words):
        MaskRule("qa", **options)

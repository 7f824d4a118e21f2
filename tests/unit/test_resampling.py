"""Resampling methods: the groups they come in, and which of them bands of codes are taken by."""

import pytest

from cogmill.resampling import ALIASING, AREA_METHODS, INTERPOLATING, METHODS, POINT_METHODS, band_method


def test_every_method_is_of_one_sort():
    assert sorted(METHODS) == sorted(set(POINT_METHODS) | set(AREA_METHODS))
    assert not set(POINT_METHODS) & set(AREA_METHODS)
    assert set(INTERPOLATING) < set(METHODS)
    assert set(ALIASING) < set(POINT_METHODS)


@pytest.mark.parametrize("method", METHODS)
def test_measurements_are_taken_as_asked(method):
    assert band_method(method, "continuous") == method


@pytest.mark.parametrize("method", METHODS)
def test_classes_are_never_interpolated(method):
    assert band_method(method, "classes") == (method if method in ("mode", "min", "max") else "nearest")


@pytest.mark.parametrize("kind", ["bits", "mask"])
@pytest.mark.parametrize("method", METHODS)
def test_flags_and_masks_are_those_of_the_nearest_pixel(method, kind):
    assert band_method(method, kind) == "nearest"

"""Resampling and its coordinates: equal to a slow reference and to gdalwarp, the same bits for any window."""

import functools
import math

import gdal_tools
import numpy as np
import pyproj
import pytest
import slow_warp
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rasterio.transform import Affine

from cogmill.kernels import coords, resample
from cogmill.kernels.resample import AREA_METHODS, METHODS, POINT_METHODS

FEW = settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
IDENTITY = (1, 0, 0, 0, 1, 0)


def coordinates(affine, window, method):
    return coords.affine_coordinates(affine, window, corners=method in AREA_METHODS)


def resampled(plane, method, x, y, origin=(0, 0), shape=None):
    """Lines of a whole window; stray pixels are an error."""
    # a kernel takes its planes read-only: the same compilation serves both
    plane = np.ascontiguousarray(plane)
    plane.flags.writeable = False
    height, width = shape or plane.shape
    rows, cols = (n - (method in AREA_METHODS) for n in x.shape)
    out = np.empty((rows, cols))
    for r in range(rows):
        lines = [x[r, :cols].copy(), y[r, :cols].copy()]
        if method in AREA_METHODS:
            lines += [x[r + 1, 1:].copy(), y[r + 1, 1:].copy()]
        assert resample.FUNCTIONS[method](out[r], plane, *origin, height, width, *lines) == 0
    return out


def random_plane(rng, shape, dtype="f4", holes=0.2, values="normal"):
    plane = rng.integers(0, 6, shape) if values == "few" else rng.normal(100, 50, shape)
    plane = plane.astype(dtype)
    plane[rng.random(shape) < holes] = np.nan
    return plane


def around(shape, scale, turn=0.0, shear=0.0, shift=(0.0, 0.0)):
    """An affine from target pixels to source pixels, so that a target of 30 x 30 lies around the source's middle."""
    middle = Affine.translation(shape[1] / 2 + shift[0], shape[0] / 2 + shift[1])
    turned = [Affine.rotation(turn), Affine.shear(shear, 0), Affine.scale(scale)]
    return chained(middle, *turned, Affine.translation(-15, -15))[:6]


def chained(*affines):
    """The last one is applied first; rasterio's versions differ in the operator that they want for it."""
    return Affine(*functools.reduce(np.matmul, [np.reshape(affine, (3, 3)) for affine in affines]).ravel()[:6].tolist())


# --- the slow reference ----------------------------------------------------------------------------------------------

GEOMETRIES = [
    {"scale": 1.0, "shift": (0.3, -0.4)},
    {"scale": 0.3, "turn": 20.0},
    {"scale": 1.2, "turn": 40.0, "shear": 12.0, "shift": (4.0, 3.0)},
    {"scale": 6.0, "turn": -7.0},
    {"scale": 2.7, "shear": -20.0, "turn": 170.0},
]
SHAPES = [(1, 1), (1, 13), (17, 1), (2, 2), (3, 5), (6, 6), (37, 41)]


@pytest.mark.parametrize("method", METHODS)
def test_equal_to_the_slow_reference(method):
    rng = np.random.default_rng(METHODS.index(method))
    seen = 0
    for number, geometry in enumerate(GEOMETRIES):
        for shape in SHAPES if number < 2 else SHAPES[-2:]:
            dtype = ("f4", "f8")[number % 2]
            plane = random_plane(rng, shape, dtype, (0.0, 0.25, 0.7)[number % 3], ("normal", "few")[number % 2])
            x, y = coordinates(around(shape, **geometry), (0, 0, 30, 30), method)
            x[rng.random(x.shape) < 0.01] = np.nan
            found, wanted = resampled(plane, method, x, y), slow_warp.warp(plane, method, x, y)
            assert np.array_equal(np.isnan(found), np.isnan(wanted))
            # lanczos divides by a sum of weights that holes can make small
            limit = {"bilinear": 1e-11, "cubic": 1e-11, "average": 1e-11, "lanczos": 1e-7}.get(method, 0)
            assert np.nanmax(np.abs(found - wanted), initial=0) <= limit
            seen += np.isfinite(found).sum()
    assert seen > 1000


@pytest.mark.parametrize("method", METHODS)
def test_coordinates_at_the_raster_s_edges(method):
    rng = np.random.default_rng(3)
    plane = random_plane(rng, (7, 9), holes=0)
    ends = [-3, -2, -1, -1e-9, -1e-11, 0, 1e-11, 0.5, 1, 1.5, 4 - 1e-11, 8.5, 9 - 1e-9, 9 - 1e-11, 9, 9 + 1e-9, 10, 12]
    ends += [math.nan, math.inf, -math.inf, 1e300, 7, 6.5]
    x, y = np.meshgrid(ends, ends)
    assert np.allclose(
        resampled(plane, method, x, y), slow_warp.warp(plane, method, x, y), rtol=0, atol=1e-9, equal_nan=True
    )


@pytest.mark.parametrize("method", ["mode", "median", "min", "max"])
@pytest.mark.parametrize("values", ["normal", "few"])
def test_large_boxes(method, values):
    plane = random_plane(np.random.default_rng(4), (150, 170), values=values)
    x, y = coordinates((70.0, 3.0, -20.0, 2.0, 66.0, -10.0), (0, 0, 3, 3), method)
    assert np.array_equal(resampled(plane, method, x, y), slow_warp.warp(plane, method, x, y), equal_nan=True)


def test_mode_takes_both_zeros_for_one_value():
    plane = np.array([[-0.0, 5, 0.0, 5, -0.0]], np.float32)
    x, y = coordinates((5.0, 0, 0, 0, 1.0, 0), (0, 0, 1, 1), "mode")
    assert resampled(plane, "mode", x, y) == [[0]]


def test_lanczos_weights_are_those_of_the_sinc():
    weights = np.empty(6)
    for u in [0.0, 1e-12, 1e-3, 0.25, 0.49999, 0.5, 0.7, 0.999, 1 - 1e-12, 1.0]:
        resample._lanczos_weights(u, weights)
        distance = u - np.arange(-2, 4)
        assert np.allclose(weights, np.sinc(distance) * np.sinc(distance / 3), rtol=1e-12, atol=1e-16)


# --- properties ------------------------------------------------------------------------------------------------------

GEOMETRY = st.builds(
    around,
    shape=st.just((40, 44)),
    scale=st.floats(0.3, 4),
    turn=st.floats(-180, 180),
    shear=st.floats(-30, 30),
    shift=st.tuples(st.floats(-20, 20), st.floats(-20, 20)),
)


@FEW
@given(affine=GEOMETRY, seed=st.integers(0, 99), data=st.data())
def test_same_bits_for_any_window(affine, seed, data):
    plane = random_plane(np.random.default_rng(seed), (40, 44), holes=0.1)
    row, col = data.draw(st.integers(0, 29)), data.draw(st.integers(0, 29))
    rows, cols = data.draw(st.integers(1, 30 - row)), data.draw(st.integers(1, 30 - col))
    for method in METHODS:
        wanted = resampled(plane, method, *coordinates(affine, (0, 0, 30, 30), method))
        x, y = coordinates(affine, (row, col, rows, cols), method)
        top, left, height, width = resample.source_window(method, x, y, plane.shape)
        part = plane[top : top + height, left : left + width]
        found = resampled(part, method, x, y, (top, left), plane.shape)
        wanted = wanted[row : row + rows, col : col + cols]
        assert np.array_equal(found.view("u8")[~np.isnan(found)], wanted.view("u8")[~np.isnan(wanted)])
        assert np.array_equal(np.isnan(found), np.isnan(wanted))


@FEW
@given(affine=GEOMETRY, seed=st.integers(0, 99), value=st.floats(width=32, allow_nan=False, allow_infinity=False))
def test_a_constant_stays_that_constant(affine, seed, value):
    plane = random_plane(np.random.default_rng(seed), (40, 44), holes=0.3)
    plane[~np.isnan(plane)] = value
    for method in METHODS:
        found = resampled(plane, method, *coordinates(affine, (0, 0, 30, 30), method))
        assert (found[~np.isnan(found)] == np.float64(np.float32(value))).all(), method


@FEW
@given(affine=GEOMETRY, seed=st.integers(0, 99))
def test_nothing_leaves_the_range_of_the_pixels_around(affine, seed):
    plane = random_plane(np.random.default_rng(seed), (40, 44), holes=0.1)
    wide = np.pad(plane, 1, constant_values=np.nan)
    stack = np.stack([wide[r : r + 40, c : c + 44] for r in range(3) for c in range(3)])
    low, high = np.nanmin(np.where(np.isnan(stack), np.inf, stack), 0), np.fmax.reduce(stack)
    for method in ("nearest", "bilinear"):
        x, y = coordinates(affine, (0, 0, 30, 30), method)
        found = resampled(plane, method, x, y)
        good = ~np.isnan(found)
        at = np.floor(y[good] + 1e-10).astype(int), np.floor(x[good] + 1e-10).astype(int)
        assert ((found[good] >= low[at]) & (found[good] <= high[at])).all()
    box = coordinates(affine, (0, 0, 30, 30), "average")
    mean, least, most = (resampled(plane, method, *box) for method in ("average", "min", "max"))
    good = ~np.isnan(mean)
    assert ((mean >= least) & (mean <= most))[good].all()


@FEW
@given(rows=st.integers(-25, 25), cols=st.integers(-25, 25), seed=st.integers(0, 99))
def test_whole_pixels_move_the_result(rows, cols, seed):
    plane = random_plane(np.random.default_rng(seed), (40, 44), holes=0.1)
    for method in METHODS:
        x, y = coordinates((1, 0, cols, 0, 1, rows), (0, 0, 40, 44), method)
        found = resampled(plane, method, x, y)
        moved = np.full(plane.shape, np.nan, "f4")
        r, c = np.arange(40) + rows, np.arange(44) + cols
        inside_r, inside_c = (r >= 0) & (r < 40), (c >= 0) & (c < 44)
        moved[np.ix_(inside_r, inside_c)] = plane[np.ix_(r[inside_r], c[inside_c])]
        if method == "lanczos":  # too few valid pixels around one that is valid: none
            moved[np.isnan(found)] = np.nan
        assert np.array_equal(found, moved, equal_nan=True), method


@pytest.mark.parametrize("method", METHODS)
def test_a_source_window_is_enough_and_not_much_more(method):
    rng = np.random.default_rng(8)
    plane = random_plane(rng, (80, 90), holes=0)
    for _ in range(20):
        affine = around((80, 90), rng.uniform(0.3, 3), rng.uniform(-180, 180), 0, rng.uniform(-60, 60, 2))
        x, y = coordinates(affine, (0, 0, 9, 9), method)
        top, left, rows, cols = resample.source_window(method, x, y, plane.shape)
        part = plane[top : top + rows, left : left + cols]
        found = resampled(part, method, x, y, (top, left), plane.shape)
        assert np.array_equal(found, resampled(plane, method, x, y), equal_nan=True)
        if not np.isnan(found).any():
            assert rows <= math.ceil(y.max() - y.min()) + 8
            assert cols <= math.ceil(x.max() - x.min()) + 8


@pytest.mark.parametrize("method", METHODS)
def test_a_plane_too_small_is_counted_and_never_read_beyond(method):
    plane = random_plane(np.random.default_rng(8), (40, 44), holes=0)
    x, y = coordinates((1, 0, 0.25, 0, 1, 0.25), (0, 0, 40, 44), method)
    part = np.ascontiguousarray(plane[10:20, 10:20])
    part.flags.writeable = False
    out = np.empty(43)
    ends = [x[16, 1:44].copy(), y[16, 1:44].copy()] if method in AREA_METHODS else []
    stray = resample.FUNCTIONS[method](out, part, 10, 10, 40, 44, x[15, :43].copy(), y[15, :43].copy(), *ends)
    assert stray == np.isnan(out).sum()
    assert 43 - 10 <= stray <= 43 - 4


# --- coordinates -----------------------------------------------------------------------------------------------------


def nodes(step, rows, cols):
    rng = np.random.default_rng(step)
    i, j = np.mgrid[: rows // step + 2, : cols // step + 2]
    # source columns and rows of a bent surface
    return [7.3 * step * a + rng.normal(0, 1, i.shape) for a in (j + 0.1 * i, i - 0.2 * j)]


@pytest.mark.parametrize("corners", [False, True])
@pytest.mark.parametrize("step", [8, 64, 5])
def test_interpolation_of_nodes_in_the_order_of_the_rule(step, corners):
    rows, cols = 71, 130
    x, y = coords.interpolate_nodes(*nodes(step, rows, cols), step, (0, 0, rows, cols), corners)
    assert x.shape == (rows + corners, cols + corners)
    for grid, found in zip(nodes(step, rows, cols), (x, y), strict=True):
        r, c = np.meshgrid(
            np.arange(rows + corners) - corners / 2, np.arange(cols + corners) - corners / 2, indexing="ij"
        )
        i, j = (np.maximum(0, np.floor(a / step)).astype(int) for a in (r, c))
        u, v = (c - j * step) / step, (r - i * step) / step
        left = grid[i, j] + (grid[i + 1, j] - grid[i, j]) * v
        right = grid[i, j + 1] + (grid[i + 1, j + 1] - grid[i, j + 1]) * v
        assert np.array_equal(found, left + (right - left) * u)
    if not corners:
        assert np.array_equal(x[::step, ::step], nodes(step, rows, cols)[0][: x[::step].shape[0], : x[0, ::step].size])


@FEW
@given(data=st.data(), corners=st.booleans(), step=st.sampled_from([8, 64, 5]))
def test_interpolated_coordinates_are_the_same_bits_for_any_window(data, corners, step):
    rows, cols = 71, 130
    row, col = data.draw(st.integers(0, rows - 1)), data.draw(st.integers(0, cols - 1))
    height, width = data.draw(st.integers(0, rows - row)), data.draw(st.integers(0, cols - col))
    window = np.s_[row : row + height + corners, col : col + width + corners]
    for function, arguments in [
        (coords.interpolate_nodes, (*nodes(step, rows, cols), step)),
        (coords.affine_coordinates, ((0.3, 0.1, 1 / 3, -0.7, 1.1, 2 / 3),)),
    ]:
        whole = function(*arguments, (0, 0, rows, cols), corners)
        part = function(*arguments, (row, col, height, width), corners)
        for a, b in zip(part, whole, strict=True):
            assert np.array_equal(a, b[window])


def test_nan_nodes_make_their_cells_nan():
    x, y = nodes(8, 40, 40)
    x[2, 3] = np.nan
    found, _ = coords.interpolate_nodes(x, y, 8, (0, 0, 40, 40))
    bad = np.zeros((40, 40), bool)
    bad[8:24, 16:32] = True
    assert np.array_equal(np.isnan(found), bad)


def test_nodes_that_end_before_the_window_are_refused():
    with pytest.raises(ValueError, match=r"needs at least \(3, 3\) nodes at a step of 8; there are \(2, 4\)"):
        coords.interpolate_nodes(np.zeros((2, 4)), np.zeros((2, 4)), 8, (0, 0, 9, 9))


def test_affine_coordinates_of_centres_and_corners():
    x, y = coords.affine_coordinates((2, 0, 100, 0, 3, 200), (10, 20, 1, 2))
    assert (x.tolist(), y.tolist()) == ([[141, 143]], [[231.5, 231.5]])
    x, y = coords.affine_coordinates((2, 0, 100, 0, 3, 200), (10, 20, 1, 2), corners=True)
    assert (x.tolist(), y.tolist()) == ([[140, 142, 144]] * 2, [[230] * 3, [233] * 3])


# --- GDAL ------------------------------------------------------------------------------------------------------------

UTM = "EPSG:25832"
NORTH_UP = Affine(10, 0, 500000, 0, -10, 5000000)
TARGETS = {
    # source's transform, target's bounds and shape
    "shifted": (NORTH_UP, (499963, 4999500, 500463, 5000037), (53, 50)),
    "aligned": (NORTH_UP, (499970, 4999560, 500480, 5000030), (47, 51)),
    "coarser": (NORTH_UP, (499983, 4999453, 500503, 5000025), (22, 20)),
    "much coarser": (NORTH_UP, (499890, 4999400, 500490, 5000120), (12, 10)),
    "finer": (NORTH_UP, (499964, 4999880, 500105, 5000042), (54, 47)),
    "rotated": (
        chained(Affine.translation(500000, 5000000), Affine.rotation(20), Affine.scale(10, -10)),
        (499963, 4999500, 500563, 5000237),
        (53, 50),
    ),
    "sheared": (
        chained(Affine.translation(500000, 5000000), Affine.shear(20, 5), Affine.scale(10, -10)),
        (499963, 4999500, 500563, 5000237),
        (53, 50),
    ),
}
# dtype, nodata of the source, nodata of the target
NUMBERS = [
    ("uint8", 0, 255), ("uint8", None, 255), ("uint16", 0, 0), ("uint16", None, 65535), ("int16", -9999, -32768),
    ("int16", None, 0), ("int32", None, -1), ("int32", -9999, -9999), ("float32", -9999, "nan"),
    ("float32", None, "nan"), ("float64", -9999, "nan"), ("float64", None, "nan"),
]  # fmt: skip


def made_pixels(dtype, nodata, shape, seed, few=False):
    rng = np.random.default_rng(seed)
    if few:
        pixels = rng.integers(1, 6, shape).astype(dtype)
    elif dtype.startswith("float"):
        pixels = rng.normal(100, 50, shape).astype(dtype)
    else:
        pixels = rng.integers(1, 250, shape).astype(dtype) * (90 if dtype.endswith("16") else 1)
        pixels = pixels.astype(dtype)
    if nodata is not None:
        pixels[rng.random(shape) < 0.15] = nodata
        pixels[10:16, 20:28] = nodata
    return pixels


def plane_of(pixels, nodata):
    plane = pixels.astype("f8" if pixels.dtype.name in ("int32", "float64") else "f4")
    plane[np.zeros(plane.shape, bool) if nodata is None else pixels == nodata] = np.nan
    return plane


def stored(values, dtype, nodata):
    """Float64 values as gdalwarp stores them."""
    if dtype.startswith("float"):
        return values.astype(dtype)
    limits = np.iinfo(dtype)
    whole = np.clip(np.floor(values + 0.5), limits.min, limits.max)
    whole[whole == nodata] = nodata + 1 if nodata == limits.min else nodata - 1
    return np.where(np.isnan(values), nodata, whole).astype(dtype)


def assert_as_gdal(gdal, values, plane, method, x, y, nodata, exact=True):
    """Equal up to what is allowed; `exact`: GDAL's coordinates are too."""
    dtype = gdal.dtype.name
    ours, floats = stored(values, dtype, nodata), dtype.startswith("float")
    known, wanted = (~np.isnan(a) if floats else a != nodata for a in (gdal, ours))
    judged = np.ones(gdal.shape, bool)
    if method in AREA_METHODS:
        # GDAL takes pixel 0 for boxes that end before it (3.10: at it): no part of the source lies in them
        ends = [np.maximum(a[:-1, :-1], a[1:, 1:]) for a in (x, y)]
        judged = (ends[0] > 1e-5) & (ends[1] > 1e-5)
        assert not wanted[~judged & (np.minimum(*ends) <= 0)].any()
    elif not exact:
        for a in (x, y):
            judged &= np.abs(a - np.round(a)) > 1e-5
    if method == "lanczos":
        # its window changes there, and the last digits of coordinates decide
        for a in (x - 0.5, y - 0.5):
            judged &= np.abs(a - np.round(a)) > 1e-6
    assert np.array_equal(known[judged], wanted[judged])
    both = known & wanted & judged
    difference = np.where(both, np.abs(gdal.astype("f8") - ours.astype("f8")), 0)
    if not floats:
        assert difference.max(initial=0) <= 1
        ties = np.abs(values - np.floor(values) - 0.5)
        near = 1e-3 + (1.1e-5 * np.abs(values) if method == "lanczos" else 0)
        assert (ties <= near)[difference == 1].all()
        if exact:
            # boxes of whole pixels have many means of exactly a half, which the last digit sends up or down
            assert ((difference == 1) & (ties > 1e-9)).sum() <= max(1, 5e-4 * both.sum())
    elif method in ("nearest", "min", "max", "median", "mode"):
        assert difference.max(initial=0) == 0
    else:
        limit = 4 * np.spacing(np.abs(values).astype("f4")) + (0 if exact else 1e-3)
        for r, c in np.argwhere(both & (difference > limit)):
            # gdalwarp divides by the weights' sum only where that is further from 1
            assert method == "lanczos"
            assert abs(slow_warp.lanczos_sum(plane, x[r, c], y[r, c]) - 1) <= 1.0001e-5
            assert difference[r, c] <= 1.1e-5 * abs(values[r, c])


@gdal_tools.needs_gdalwarp
@pytest.mark.parametrize("method", METHODS)
def test_equal_to_gdalwarp(method, tmp_path):
    for number, (dtype, nodata, beyond) in enumerate(NUMBERS):
        names = list(TARGETS)
        for name in {names[(number + METHODS.index(method)) % len(names)], "much coarser"}:
            transform, bounds, shape = TARGETS[name]
            # gdalwarp counts wide numbers in float32, so that mode is compared over whole ones
            pixels = made_pixels(dtype, nodata, (40, 44), number, few=method == "mode")
            source = gdal_tools.write_source(tmp_path / "source.tif", pixels, transform, UTM, nodata)
            found = gdal_tools.run_gdalwarp(source, tmp_path / "out.tif", method, UTM, bounds, shape, beyond)
            place = gdal_tools.target_coordinates(bounds, shape, method in AREA_METHODS)
            x, y = gdal_tools.inverse(transform, *place)
            plane = plane_of(pixels, nodata)
            assert_as_gdal(found, resampled(plane, method, x, y), plane, method, x, y, beyond)


@pytest.mark.parametrize("method", METHODS)
def test_equal_to_the_library_s_warped_vrt(method, tmp_path):
    for number, name in enumerate(["shifted", "aligned", "coarser", "rotated", "sheared"]):
        dtype, nodata, beyond = [("float32", -9999, math.nan), ("uint16", 0, 0), ("float32", None, math.nan)][
            number % 3
        ]
        transform, bounds, shape = TARGETS[name]
        pixels = made_pixels(dtype, nodata, (40, 44), number)
        source = gdal_tools.write_source(tmp_path / f"{name}.tif", pixels, transform, UTM, nodata)
        found = gdal_tools.run_vrt(source, method, UTM, bounds, shape, beyond)
        x, y = gdal_tools.inverse(transform, *gdal_tools.target_coordinates(bounds, shape, method in AREA_METHODS))
        plane = plane_of(pixels, nodata)
        assert_as_gdal(found, resampled(plane, method, x, y), plane, method, x, y, beyond, exact=False)


@gdal_tools.needs_gdalwarp
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("crs", ["EPSG:3035", "EPSG:25833", "EPSG:4258"])
def test_equal_to_gdalwarp_across_projections(crs, method, tmp_path):
    pixels = made_pixels("float32", -9999, (40, 44), 5)
    source = gdal_tools.write_source(tmp_path / "source.tif", pixels, NORTH_UP, UTM, -9999)
    there = pyproj.Transformer.from_crs(UTM, crs, always_xy=True)
    back = pyproj.Transformer.from_crs(crs, UTM, always_xy=True)
    left, bottom, right, top = there.transform_bounds(499950, 4999550, 500490, 5000050)
    bounds, shape = (left, bottom, right, top), (33, 37)
    found = gdal_tools.run_gdalwarp(source, tmp_path / "out.tif", method, crs, bounds, shape, "nan")
    place = back.transform(*gdal_tools.target_coordinates(bounds, shape, method in AREA_METHODS))
    x, y = gdal_tools.inverse(NORTH_UP, *place)
    plane = plane_of(pixels, -9999)
    assert_as_gdal(found, resampled(plane, method, x, y), plane, method, x, y, "nan")


def test_methods_are_all_of_points_or_of_areas():
    assert set(resample.FUNCTIONS) == set(METHODS) == {*POINT_METHODS, *AREA_METHODS} == set(resample.FOOTPRINT)

"""The way through GDAL's warper gives what gdalwarp gives, for transforms, ground control points and RPCs."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import rasterio
from pyproj import CRS, Transformer
from rasterio.enums import Resampling
from rasterio.vrt import WarpedVRT

import cogmill
from cogmill.errors import SceneError
from cogmill.gdalwarp import METHODS, WarpedPlane, footprint, write_plane
from cogmill.grids import GridSpec, Window

SHAPE = (300, 400)
UTM33 = GridSpec(CRS("EPSG:32633").to_wkt(), (10.0, 0.0, 500000.0, 0.0, -10.0, 5000000.0), SHAPE)
GDALWARP = {"nearest": "near", "median": "med"}

needs_gdalwarp = pytest.mark.skipif(shutil.which("gdalwarp") is None, reason="gdalwarp: not installed")


def plane(dtype="float32", seed=0) -> np.ndarray:
    """Noise with a hole and scattered invalid pixels."""
    random = np.random.default_rng(seed)
    values = random.random(SHAPE).astype(dtype)
    values[random.random(SHAPE) < 0.1] = np.nan
    values[100:140, 200:260] = np.nan
    return values


def around(source: GridSpec, crs: str, size: float, gcps=None, rpcs=None, margin=-8.0) -> GridSpec:
    """Grid of square pixels in `crs` around a raster's footprint, `margin` pixels inside (negative: outside) of it."""
    target = CRS(crs).to_wkt()
    x, y = footprint(source, gcps, rpcs, target)
    left, top = x.min() + margin * size, y.max() - margin * size
    cols, rows = int((x.max() - left) / size - margin), int((top - y.min()) / size - margin)
    return GridSpec(target, (size, 0.0, left, 0.0, -size, top), (rows, cols))


def apply(affine, col, row) -> tuple:
    a, b, c, d, e, f = tuple(affine)[:6]
    return a * col + b * row + c, d * col + e * row + f


def warp(path: Path, target: GridSpec, method: str, **how) -> np.ndarray:
    with WarpedPlane(path, target, method, **how) as warped:
        return warped.read(Window(0, 0, *target.shape))


def gdalwarp(path: Path, target: GridSpec, method: str) -> np.ndarray:
    """What the program of that name makes of the plane, with exact coordinates."""
    size, _, left, _, _, top = target.transform
    rows, cols = target.shape
    extent = [repr(float(number)) for number in (left, top - size * rows, left + size * cols, top)]
    out = path.with_name("gdalwarp.tif")
    command = ["gdalwarp", "-q", "-overwrite", "-et", "0", "-wo", "XSCALE=1", "-wo", "YSCALE=1"]
    command += ["-r", GDALWARP.get(method, method), "-t_srs", target.crs, "-te", *extent, "-ts", str(cols), str(rows)]
    subprocess.run([*command, str(path), str(out)], check=True, capture_output=True)
    with rasterio.open(out) as file:
        return file.read(1)


def check_same(found: np.ndarray, wanted: np.ndarray, ulp: int) -> None:
    assert found.dtype == wanted.dtype
    np.testing.assert_array_equal(np.isnan(found), np.isnan(wanted), "validity")
    if found.dtype == np.float64 and ulp:  # then the last digits of the coordinates show
        np.testing.assert_allclose(found, wanted, atol=1e-7)
    else:
        np.testing.assert_array_max_ulp(np.nan_to_num(found), np.nan_to_num(wanted), ulp)


@needs_gdalwarp
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("method", METHODS)
def test_a_plane_is_warped_as_gdalwarp_does_it(tmp_path, method, dtype):
    write_plane(tmp_path / "plane.tif", UTM33, dtype, [(Window(0, 0, *SHAPE), plane(dtype))])
    # inside of the raster: what lies within two pixels of its edge, area methods take differently by GDAL's version
    area = method in ("average", "mode", "min", "max", "median")
    target = around(UTM33, "EPSG:32632", 9.0, margin=40.0 if area else -8.0)
    found = warp(tmp_path / "plane.tif", target, method)
    assert 0.2 < np.isfinite(found).mean() < 1
    check_same(found, gdalwarp(tmp_path / "plane.tif", target, method), 0 if method == "nearest" else 4)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("crs", ["EPSG:32632", "EPSG:3035", "EPSG:4326"])
def test_a_plane_is_warped_as_by_rasterio(tmp_path, crs, method):
    write_plane(tmp_path / "plane.tif", UTM33, "float32", [(Window(0, 0, *SHAPE), plane())])
    target = around(UTM33, crs, 1e-4 if crs == "EPSG:4326" else 9.0)
    rows, cols = target.shape
    with (
        rasterio.open(tmp_path / "plane.tif") as file,
        WarpedVRT(
            file,
            crs=target.crs,
            transform=rasterio.Affine(*target.transform),
            height=rows,
            width=cols,
            resampling=Resampling[{"median": "med"}.get(method, method)],
            src_nodata=np.nan,
            nodata=np.nan,
            tolerance=1e-9,
            warp_extras={"XSCALE": 1, "YSCALE": 1},
        ) as vrt,
    ):
        wanted = vrt.read(1)
    assert np.isfinite(wanted).any()
    check_same(warp(tmp_path / "plane.tif", target, method), wanted, 0 if method == "nearest" else 4)


@pytest.mark.parametrize(
    "transform",
    [
        (8.66, 5.0, 500000.0, 5.0, -8.66, 5000000.0),
        (10.0, 0.0, 500000.0, 0.0, 10.0, 4997000.0),
    ],
    ids=["rotated", "south-up"],
)
def test_the_plane_may_lie_in_any_direction(tmp_path, transform):
    source = GridSpec(UTM33.crs, transform, SHAPE)
    values = plane()
    write_plane(tmp_path / "plane.tif", source, "float32", [(Window(0, 0, *SHAPE), values)])
    target = around(source, "EPSG:3857", 14.0)
    found = warp(tmp_path / "plane.tif", target, "nearest")
    col, row = np.meshgrid(np.arange(target.shape[1]) + 0.5, np.arange(target.shape[0]) + 0.5)
    size, _, left, _, _, top = target.transform
    x, y = Transformer.from_crs(3857, 32633, always_xy=True).transform(left + size * col, top - size * row)
    col, row = apply(~rasterio.Affine(*transform), x, y)
    inside = (col >= 0) & (col < SHAPE[1]) & (row >= 0) & (row < SHAPE[0])
    wanted = np.full(target.shape, np.nan, np.float32)
    wanted[inside] = values[row[inside].astype(int), col[inside].astype(int)]
    np.testing.assert_array_equal(found, wanted)


def test_same_pixels_for_any_windows_of_plane_and_target(tmp_path):
    values = plane()
    write_plane(tmp_path / "whole.tif", UTM33, "float32", [(Window(0, 0, *SHAPE), values)])
    parts = [Window(0, 0, 128, 400), Window(128, 0, 172, 250), Window(128, 250, 172, 150)]
    cut = ((w, values[w.row : w.row + w.rows, w.col : w.col + w.cols]) for w in parts)
    write_plane(tmp_path / "parts.tif", UTM33, "float32", cut)
    target = around(UTM33, "EPSG:3035", 5.0)
    wanted = warp(tmp_path / "whole.tif", target, "cubic")
    with WarpedPlane(tmp_path / "parts.tif", target, "cubic", threads=2) as warped:
        strips = [warped.read(Window(row, 0, min(77, target.shape[0] - row), 300)) for row in range(0, 600, 77)]
    np.testing.assert_array_equal(np.vstack(strips), wanted[: sum(map(len, strips)), :300])
    assert np.isfinite(strips[4]).any()


def test_what_no_window_covers_is_invalid_and_takes_no_room(tmp_path):
    source = GridSpec(UTM33.crs, UTM33.transform, (8192, 8192))
    write_plane(tmp_path / "plane.tif", source, "float64", [(Window(512, 512, 512, 512), np.ones((512, 512)))])
    assert (tmp_path / "plane.tif").stat().st_size < 200_000
    same = GridSpec(UTM33.crs, UTM33.transform, (2000, 2000))
    found = warp(tmp_path / "plane.tif", same, "average")
    assert found.dtype == np.float64
    wanted = np.full(same.shape, np.nan)
    wanted[512:1024, 512:1024] = 1
    np.testing.assert_array_equal(found, wanted)


def test_longitudes_count_from_the_middle_of_the_source(tmp_path):
    source = GridSpec(CRS("EPSG:4326").to_wkt(), (0.1, 0.0, 165.0, 0.0, -0.1, 15.0), SHAPE)
    values = plane()
    write_plane(tmp_path / "plane.tif", source, "float32", [(Window(0, 0, *SHAPE), values)])
    # both sides of 180 degrees, in longitudes that the source does not use
    target = GridSpec(CRS("EPSG:4269").to_wkt(), (0.1, 0.0, -185.0, 0.0, -0.1, 15.0), SHAPE)
    found = warp(tmp_path / "plane.tif", target, "bilinear")
    np.testing.assert_array_equal(found[:, :300], values[:, 100:])
    assert np.isnan(found[:, 300:]).all()


@pytest.mark.parametrize(
    ("source_crs", "transform", "target_crs"),
    [
        (4326, (1e-4, 0.0, 15.0, 0.0, -1e-4, 45.0), 3035),
        (32610, (10.0, 0.0, 500000.0, 0.0, -10.0, 5000000.0), 4267),
        (3413, (1e3, 0.0, -1e5, 0.0, -1e3, 1e5), 32661),
    ],
)
def test_a_given_pipeline_is_used_whatever_the_axis_order(tmp_path, source_crs, transform, target_crs):
    place = Transformer.from_crs(source_crs, target_crs, always_xy=True)
    place.transform(*apply(transform, 200, 150))
    pipeline = place.get_last_used_operation().definition
    source = GridSpec(CRS(source_crs).to_wkt(), transform, SHAPE)
    write_plane(tmp_path / "plane.tif", source, "float32", [(Window(0, 0, *SHAPE), plane())])
    target = around(source, f"EPSG:{target_crs}", {3035: 8.0, 4267: 1e-4, 32661: 900.0}[target_crs])
    found = warp(tmp_path / "plane.tif", target, "nearest", pipeline=pipeline)
    col, row = np.meshgrid(np.arange(target.shape[1]) + 0.5, np.arange(target.shape[0]) + 0.5)
    fixed = Transformer.from_pipeline(pipeline)
    x, y = fixed.transform(*apply(target.transform, col, row), direction="INVERSE")
    col, row = apply(~rasterio.Affine(*transform), x, y)
    inside = (col >= 0) & (col < SHAPE[1]) & (row >= 0) & (row < SHAPE[0])
    wanted = np.full(target.shape, np.nan, np.float32)
    wanted[inside] = plane()[row[inside].astype(int), col[inside].astype(int)]
    tie = np.minimum(np.abs(col - np.rint(col)), np.abs(row - np.rint(row))) < 2e-4
    np.testing.assert_array_equal(found[~tie], wanted[~tie])  # pyproj's and rasterio's PROJ may differ by that much
    assert tie.mean() < 1e-2 and inside.sum() > 10_000


# --- ground control points and rational polynomials


def points(bent: float, rows=(0, 150, 300), cols=(0, 200, 400)) -> list:
    """GCPs on the grid of UTM33, bent away from it."""
    return [
        [float(r), float(c), 5e5 + 10 * c + bent * r * c, 5e6 - 10 * r + 2 * bent * c * c, 0.0]
        for r in rows
        for c in cols
    ]


def coefficients(**terms) -> str:
    return " ".join(str(terms.get(f"c{n}", 0.0)) for n in range(20))


# of a slightly sheared, slightly curved view, with the ground at height 0 away from the middle of the heights
RPCS = {
    "LINE_OFF": "150",
    "SAMP_OFF": "200",
    "LAT_OFF": "45",
    "LONG_OFF": "15",
    "HEIGHT_OFF": "20",
    "LINE_SCALE": "150",
    "SAMP_SCALE": "200",
    "LAT_SCALE": "0.015",
    "LONG_SCALE": "0.02",
    "HEIGHT_SCALE": "500",
    "LINE_NUM_COEFF": coefficients(c0=0.01, c1=0.1, c2=-1.0, c3=0.1, c4=0.01),
    "LINE_DEN_COEFF": coefficients(c0=1.0, c1=0.001),
    "SAMP_NUM_COEFF": coefficients(c1=1.0, c2=0.1, c3=0.05),
    "SAMP_DEN_COEFF": coefficients(c0=1.0),
}
NOWHERE = GridSpec(UTM33.crs, None, SHAPE)


def rpc_pixels(lon, lat) -> tuple[np.ndarray, np.ndarray]:
    """(column, row) by RPCS, written out for its few terms; pixel centres of RPCs are whole numbers."""
    x, y, z = (lon - 15) / 0.02, (lat - 45) / 0.015, -20 / 500
    line = (0.01 + 0.1 * x - y + 0.1 * z + 0.01 * x * y) / (1 + 0.001 * x)
    return 200 + 200 * (x + 0.1 * y + 0.05 * z) + 0.5, 150 + 150 * line + 0.5


@needs_gdalwarp
@pytest.mark.parametrize("bent", [0.0, 1e-3])
@pytest.mark.parametrize("number", [9, 4])
def test_ground_control_points_place_a_plane_as_gdalwarp_does(tmp_path, bent, number):
    gcps = points(bent) if number == 9 else points(bent, (0, 300), (0, 400))
    write_plane(tmp_path / "plane.tif", NOWHERE, "float32", [(Window(0, 0, *SHAPE), plane())], gcps=gcps)
    target = around(NOWHERE, "EPSG:3857", 15.0, gcps=gcps)
    for method in ("nearest", "bilinear"):
        found = warp(tmp_path / "plane.tif", target, method)
        assert np.isfinite(found).mean() > 0.4
        check_same(found, gdalwarp(tmp_path / "plane.tif", target, method), 4)


def test_exact_ground_control_points_are_as_good_as_a_transform(tmp_path):
    write_plane(tmp_path / "plane.tif", UTM33, "float32", [(Window(0, 0, *SHAPE), plane())])
    target = around(UTM33, "EPSG:3035", 10.0)
    wanted = warp(tmp_path / "plane.tif", target, "bilinear")
    write_plane(tmp_path / "plane.tif", NOWHERE, "float32", [(Window(0, 0, *SHAPE), plane())], gcps=points(0.0))
    found = warp(tmp_path / "plane.tif", target, "bilinear")
    differ = np.isnan(found) != np.isnan(wanted)
    assert differ.mean() < 1e-4
    np.testing.assert_allclose(found[~differ], wanted[~differ], atol=1e-5)


def test_the_case_with_ground_control_points_only_lies_where_they_say(shared, tmp_path):
    path = shared / "cases" / "c36_gcp_only.tif"
    with rasterio.open(path) as file:
        values, (found, crs) = file.read(1).astype("f4"), file.gcps
    gcps = [[p.row, p.col, p.x, p.y, p.z or 0.0] for p in found]
    source = GridSpec(crs.to_wkt(), None, values.shape)
    write_plane(tmp_path / "plane.tif", source, "float32", [(Window(0, 0, *values.shape), values)], gcps=gcps)
    target = GridSpec(crs.to_wkt(), (10.0, 0.0, 499990.0, 0.0, -10.0, 5000010.0), (50, 66))
    wanted = np.pad(values, 1, constant_values=np.nan)
    np.testing.assert_array_equal(warp(tmp_path / "plane.tif", target, "nearest"), wanted)


@needs_gdalwarp
@pytest.mark.parametrize("crs", ["EPSG:32633", "EPSG:4326"])
def test_rational_polynomials_place_a_plane_as_gdalwarp_does(tmp_path, crs):
    source = GridSpec(None, None, SHAPE)
    write_plane(tmp_path / "plane.tif", source, "float32", [(Window(0, 0, *SHAPE), plane())], rpcs=RPCS)
    target = around(source, crs, 10.0 if crs == "EPSG:32633" else 1e-4, rpcs=RPCS)
    found = warp(tmp_path / "plane.tif", target, "bilinear")
    wanted = gdalwarp(tmp_path / "plane.tif", target, "bilinear")
    assert np.isfinite(found).mean() > 0.4
    differ = np.isnan(found) != np.isnan(wanted)
    assert differ.sum() <= 5  # on an edge of a pixel, where the last digits decide
    np.testing.assert_allclose(found[~differ], wanted[~differ], atol=1e-6)


def test_rational_polynomials_are_evaluated_at_height_0(tmp_path):
    source = GridSpec(None, None, SHAPE)
    values = plane()
    write_plane(tmp_path / "plane.tif", source, "float32", [(Window(0, 0, *SHAPE), values)], rpcs=RPCS)
    target = around(source, "EPSG:4326", 1e-4, rpcs=RPCS)
    found = warp(tmp_path / "plane.tif", target, "nearest")
    size, _, left, _, _, top = target.transform
    lon, lat = np.meshgrid(
        left + size * (np.arange(target.shape[1]) + 0.5), top - size * (np.arange(target.shape[0]) + 0.5)
    )
    col, row = rpc_pixels(lon, lat)
    inside = (col >= 0) & (col < SHAPE[1]) & (row >= 0) & (row < SHAPE[0])
    wanted = np.full(target.shape, np.nan, np.float32)
    wanted[inside] = values[row[inside].astype(int), col[inside].astype(int)]
    tie = np.minimum(np.abs(col - np.rint(col)), np.abs(row - np.rint(row))) < 1e-6
    np.testing.assert_array_equal(found[~tie], wanted[~tie])
    assert tie.mean() < 1e-2


def test_the_footprint_of_rational_polynomials_leads_back_to_the_outline():
    lon, lat = footprint(GridSpec(None, None, SHAPE), None, RPCS, "EPSG:4326", points=16)
    col, row = rpc_pixels(lon, lat)
    along = np.arange(16) / 16
    np.testing.assert_allclose(col[:16], along * SHAPE[1], atol=0.15)
    np.testing.assert_allclose(row[16:32], along * SHAPE[0], atol=0.15)
    np.testing.assert_allclose(col[48:], 0, atol=0.15)


@pytest.mark.parametrize("gcps", [None, points(0.0)], ids=["transform", "gcps"])
def test_the_footprint_is_the_outline_in_the_other_crs(gcps):
    x, y = footprint(NOWHERE if gcps else UTM33, gcps, None, CRS("EPSG:4326").to_wkt(), points=2)
    corners = np.array([(0, 0), (2, 0), (4, 0), (4, 1.5), (4, 3), (2, 3), (0, 3), (0, 1.5)]) * 1000
    wanted = Transformer.from_crs(32633, 4326, always_xy=True).transform(5e5 + corners[:, 0], 5e6 - corners[:, 1])
    np.testing.assert_allclose((x, y), wanted, atol=1e-8)


# --- refusals and bounds


@pytest.mark.parametrize(
    ("crs", "gcps", "words"),
    [
        (UTM33.crs, points(0.0)[:2], "2 ground control points"),
        (UTM33.crs, points(0.0)[:1] * 5, "5 ground control points"),
        (UTM33.crs, points(0.0)[:3], "3 ground control points"),
        (None, points(0.0), "name no CRS"),
        (None, None, "no georeferencing"),
        (UTM33.crs, None, "no georeferencing"),
    ],
    ids=["two", "five on one spot", "three in a line", "no crs", "nothing", "only a crs"],
)
def test_what_gdal_cannot_place_is_an_error_of_the_scene(tmp_path, crs, gcps, words):
    source = GridSpec(crs, None, SHAPE)
    write_plane(tmp_path / "plane.tif", source, "float32", [(Window(0, 0, *SHAPE), plane())], gcps=gcps)
    with pytest.raises(SceneError, match=words) as caught:
        WarpedPlane(tmp_path / "plane.tif", UTM33, "bilinear")
    assert caught.value.reason == "georeferencing"


MEMORY = """
import resource, sys, numpy as np
from cogmill.gdalwarp import WarpedPlane, write_plane
from cogmill.grids import GridSpec, windows
side = int(sys.argv[2])
source = GridSpec({crs!r}, {transform!r}, (side, side))
target = GridSpec({crs!r}, (10.0, 0.0, 500003.0, 0.0, -10.0, 5000004.0), (side, side))
values = np.random.default_rng(0).random((512, side), np.float32)
write_plane(sys.argv[1], source, "float32", ((w, values[: w.rows]) for w in windows(source.shape, 1)))
with WarpedPlane(sys.argv[1], target, "bilinear") as warped:
    total = sum(float(np.nansum(warped.read(w))) for w in windows(target.shape, 1))
assert total > 0
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)
"""


def test_memory_does_not_grow_with_the_raster(tmp_path):
    program = MEMORY.format(crs=UTM33.crs, transform=UTM33.transform)

    def peak(side: int) -> int:
        command = [sys.executable, "-c", program, str(tmp_path / "plane.tif"), str(side)]
        # of GDAL's block cache a fraction of the machine's memory otherwise
        done = subprocess.run(command, check=True, capture_output=True, text=True, env=ENV)
        return int(done.stdout)

    small, large = peak(512), peak(8192)
    # 8192 x 8192 float32 are 256 MiB; a tile row of it 16 MiB
    assert large - small < 150, f"{large} MiB against {small} MiB"


ENV = {"GDAL_CACHEMAX": "32", "PATH": "/usr/bin:/bin"}


def test_no_other_module_warps_through_rasterio():
    package = Path(cogmill.__file__).parent
    pattern = re.compile(r"rasterio\.(warp|vrt)\b|from rasterio import .*\b(warp|vrt)\b|WarpedVRT\(")
    found = {path.name for path in package.rglob("*.py") if pattern.search(path.read_text(encoding="utf-8"))}
    assert found == {"gdalwarp.py"}

"""Real scenes on other grids, pixel by pixel as gdalwarp makes them.

gdalwarp gets the band as float32 with NaN where it is invalid, exact coordinates and kernels that are not widened. Its
PROJ may be another than pyproj's, so targets are of the scene's own datum.
"""

import json
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import rasterio
from campaigns import Run, run_campaign
from conftest import SHARED
from pyproj import CRS, Transformer

from cogmill.gdalwarp import METHODS, write_plane
from cogmill.grids import GridSpec, Window
from cogmill.ledger import read_json

pytestmark = [
    pytest.mark.filterwarnings("ignore::rasterio.errors.NotGeoreferencedWarning"),
    pytest.mark.skipif(shutil.which("gdalwarp") is None, reason="gdalwarp: not installed"),
]

FOLDER = SHARED / "real"
INDEX = json.loads((FOLDER / "index.json").read_text(encoding="utf-8")) if FOLDER.is_dir() else []
AREA = ("average", "mode", "min", "max", "median")
GDALWARP = {"nearest": "near", "median": "med"}
OTHERS = [method for method in METHODS if method not in ("nearest", "bilinear")]
EMPTY = ("rio-tiler/inverted_lat.tif",)  # no pixel of it is valid
LARGEST = 320  # pixels a side of a target
RATIO = 1.3  # source pixels a target pixel


def one_a_grid() -> list[str]:
    """Georeferenced files, the first of those on one grid."""
    found = {}
    for entry in INDEX:
        if entry.get("crs") and "width" in entry and entry["file"] not in EMPTY:
            found.setdefault((entry["crs"], *entry["transform"], entry["width"]), entry["file"])
    return list(found.values()) or ["none"]


def methods_of(name: str) -> list[str]:
    """nearest, bilinear and three others, by turns over the files."""
    turn = one_a_grid().index(name) * 3
    return ["nearest", "bilinear", *(OTHERS[(turn + k) % len(OTHERS)] for k in range(3))]


@dataclass
class Warped:
    """A file's first band on a target: what gdalwarp made of it, and campaigns with exact and with default places."""

    plane: np.ndarray
    x: np.ndarray  # exact source coordinates of the target's pixel centres
    y: np.ndarray
    wanted: dict
    exact: Run
    default: Run


def apply(affine, col, row) -> tuple:
    a, b, c, d, e, f = tuple(affine)[:6]
    return a * col + b * row + c, d * col + e * row + f


def target_of(source) -> tuple[CRS, rasterio.Affine, tuple[int, int], Transformer]:
    """A grid of RATIO source pixels a pixel about a raster's middle, or its top left corner where it is large."""
    own = CRS.from_wkt(source.crs.to_wkt())
    crs = CRS.from_epsg(3857) if own.is_geographic else own.geodetic_crs.to_2d()
    code = own.to_epsg()
    if code and 32601 <= code < 32660 and code % 2 == 0:
        crs = CRS.from_epsg(code + 1)
    place = Transformer.from_crs(own, crs, always_xy=True)
    rows, cols = (min(size, int(RATIO * LARGEST)) for size in source.shape)
    if own.is_geographic and max(map(abs, source.bounds)) > 85:  # web mercator ends there
        from_row = source.height / 3 if source.transform.e < 0 else source.height * 2 / 3
        origin = apply(source.transform, source.width / 3, from_row)
    else:
        origin = apply(source.transform, -3.3, -2.7)
    x, y = place.transform(*origin)
    there = [place.transform(*apply(source.transform, *at)) for at in ((cols / 2, rows / 2), (cols / 2 + 1, rows / 2))]
    below = place.transform(*apply(source.transform, cols / 2, rows / 2 + 1))
    step = [np.hypot(*np.subtract(other, there[0])) for other in (there[1], below)]
    if crs.is_geographic:  # a degree is shorter to the east
        step = [step[1] / np.cos(np.radians(there[0][1])), step[1]]
    shape = tuple(min(LARGEST, int(size / RATIO) + 8) for size in source.shape)
    return crs, rasterio.Affine(RATIO * step[0], 0, x, 0, -RATIO * step[1], y), shape, place


def gdalwarp(plane: Path, crs: CRS, transform, shape, method: str) -> np.ndarray:
    rows, cols = shape
    extent = [transform.c, transform.f + rows * transform.e, transform.c + cols * transform.a, transform.f]
    out = plane.with_name("gdalwarp.tif")
    command = ["gdalwarp", "-q", "-overwrite", "-et", "0", "-wo", "XSCALE=1", "-wo", "YSCALE=1", "-t_srs", crs.to_wkt()]
    command += [
        "-r",
        GDALWARP.get(method, method),
        "-te",
        *(repr(float(n)) for n in extent),
        "-ts",
        str(cols),
        str(rows),
    ]
    subprocess.run([*command, str(plane), str(out)], check=True, capture_output=True)
    with rasterio.open(out) as file:
        return file.read(1)


def campaign(folder: Path, path: Path, methods: list[str], integer: bool, **grid) -> Run:
    folder.mkdir()
    products = {method: {"formula": "b1", "resampling": method} for method in methods}
    if integer:
        products["whole"] = {"formula": "b1", "dtype": "int32", "scale": 1}
    row = {"scene": "S1", "sensor": "first", "path": str(path), "scale": "1", "offset": "0"}
    return run_campaign(
        folder,
        [row],
        products,
        {"first": {"b1": {"position": 1}}},
        grid=grid,
        warp={"allow_ballpark": True, "allow_aliasing": True},
    )


@pytest.fixture(scope="module", params=one_a_grid())
def warped(request, shared, tmp_path_factory) -> Warped:
    path, folder = shared / "real" / request.param, tmp_path_factory.mktemp("warp")
    with rasterio.open(path) as source:
        crs, transform, shape, place = target_of(source)
        numbers = source.read(1)
        plane = numbers.astype("f4")
        plane[(source.read_masks(1) == 0) | ~np.isfinite(plane)] = np.nan
        spec = GridSpec(source.crs.to_wkt(), tuple(source.transform)[:6], source.shape)
        back = ~source.transform
    write_plane(folder / "plane.tif", spec, "float32", [(Window(0, 0, *spec.shape), plane)])
    profile = {"driver": "GTiff", "height": shape[0], "width": shape[1], "count": 1, "dtype": "uint8"}
    with rasterio.open(folder / "like.tif", "w", crs=crs.to_wkt(), transform=transform, **profile):
        pass
    col, row = np.meshgrid(np.arange(shape[1]) + 0.5, np.arange(shape[0]) + 0.5)
    x, y = apply(back, *place.transform(*apply(transform, col, row), direction="INVERSE"))
    methods = methods_of(request.param)
    integer, like = numbers.dtype.kind in "iu", str(folder / "like.tif")
    return Warped(
        plane,
        x,
        y,
        {method: gdalwarp(folder / "plane.tif", crs, transform, shape, method) for method in methods},
        campaign(folder / "exact", path, methods, integer, like=like, max_error_px=0),
        campaign(folder / "default", path, methods[:2], False, like=like),
    )


def pixels(run: Run, name: str) -> np.ndarray:
    assert run.lines["S1"]["state"] == "done", run.lines["S1"]["message"]
    with rasterio.open(run.product("S1", name)) as file:
        return file.read(1)


def inner(warped: Warped, method: str) -> np.ndarray:
    """Pixels to compare: of area methods those off the raster's edge, where GDAL's versions differ."""
    rows, cols = warped.plane.shape
    margin = 3 if method in AREA else -np.inf
    with np.errstate(invalid="ignore"):
        return (np.minimum(warped.x, cols - warped.x) > margin) & (np.minimum(warped.y, rows - warped.y) > margin)


def surroundings(warped: Warped) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Of each target pixel's place in the source: largest magnitude and range of the pixels about it, any invalid?"""
    padded = np.pad(warped.plane, 4, constant_values=np.nan)
    low, high = np.full(padded.shape, np.inf), np.full(padded.shape, -np.inf)
    invalid = np.zeros(padded.shape, bool)
    for down in range(-3, 4):
        for right in range(-3, 4):
            other = np.roll(padded, (down, right), (0, 1)).astype("f8")
            low, high = np.fmin(low, other), np.fmax(high, other)
            invalid |= np.isnan(other)
    rows, cols = warped.plane.shape
    at = tuple(np.clip(np.nan_to_num(z), 0, n - 1).astype(int) + 4 for z, n in ((warped.y, rows), (warped.x, cols)))
    low, high = low[at], high[at]
    return np.maximum(np.abs(low), np.abs(high)), high - low, invalid[at]


def check_close(method, found, wanted, allowed, compared) -> None:
    np.testing.assert_array_equal(np.isnan(found)[compared], np.isnan(wanted)[compared], f"validity of {method}")
    both = compared & np.isfinite(found) & np.isfinite(wanted)
    assert both.any()
    off = np.abs(found.astype("f8") - wanted)[both] - allowed[both]
    assert off.max() <= 0, f"{method}: {(off > 0).sum()} of {both.sum()} pixels, by up to {off.max()}"


def four_ulp(warped: Warped) -> np.ndarray:
    return 4 * np.spacing(surroundings(warped)[0].astype("f4")).astype("f8")


def test_exact_places_give_the_pixels_of_gdalwarp(warped):
    for method, wanted in warped.wanted.items():
        found, compared = pixels(warped.exact, method), inner(warped, method)
        assert np.isfinite(wanted[compared]).sum() > 500
        copied = method in ("nearest", "mode", "min", "max", "median")
        allowed = np.zeros(found.shape) if copied else four_ulp(warped)
        if method == "lanczos":
            # 36 terms of both signs are summed, and gdalwarp's weights are off by some millionths where a centre is
            # close to a source pixel's
            close = [np.abs(z - 0.5 - np.rint(z - 0.5)) < 0.03 for z in (warped.x, warped.y)]
            allowed = 4 * allowed + np.where(close[0] & close[1], 5e-5, 1e-6) * np.nan_to_num(surroundings(warped)[0])
        check_close(method, found, wanted, allowed, compared)


def test_whole_numbers_differ_by_one_at_ties_only(warped):
    if "whole" not in warped.exact.lines["S1"]["products"]:
        return
    found, wanted = pixels(warped.exact, "whole"), warped.wanted["bilinear"].astype("f8")
    with rasterio.open(warped.exact.product("S1", "whole")) as file:
        invalid = file.read_masks(1) == 0
    np.testing.assert_array_equal(invalid, np.isnan(wanted))
    difference = np.abs(found - np.floor(wanted + 0.5))[~invalid]
    tie = np.abs(wanted - np.floor(wanted) - 0.5)[~invalid]
    assert difference.max() <= 1 and (difference > 0).mean() <= 5e-4
    assert (tie[difference > 0] <= 1e-3).all()


@pytest.mark.parametrize("method", ["nearest", "bilinear"])
def test_the_default_grid_is_off_by_no_more_than_it_says(warped, method):
    found, wanted = pixels(warped.default, method), warped.wanted[method]
    error = read_json(warped.default.made.path("grids", "S1"))["warp"]["error_px"]
    assert 0 <= error <= 0.01
    magnitude, spread, invalid = surroundings(warped)
    edge = np.minimum(np.abs(warped.x - np.rint(warped.x)), np.abs(warped.y - np.rint(warped.y)))
    at_edge = edge <= error + 1e-9
    assert at_edge.mean() < 0.06
    differ = np.isnan(found) != np.isnan(wanted)
    assert not (differ & ~at_edge).any()
    if method == "nearest":
        differ |= (found != wanted) & ~np.isnan(found) & ~np.isnan(wanted)
        assert not (differ & ~at_edge).any()
        return
    # at most the whole spread from one pixel to the next, in two directions; more where weights are made up for
    gradient = 2 * spread * np.where(invalid, 8, 1)
    allowed = error * gradient + 4 * np.spacing(magnitude.astype("f4")).astype("f8")
    check_close(method, found, wanted, allowed, ~differ)

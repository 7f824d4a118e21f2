"""Products on another grid than their bands': from the store to the file, whatever the windows, threads and memory."""

import json

import numpy as np
import pytest
import rasterio
from made import NDVI, prepare, red_nir, write_raster
from rasterio.transform import Affine

from cogmill.ledger import read_json
from cogmill.supervisor import compute_batch

UTM33 = "EPSG:32633"
NORTH_UP = Affine(10, 0, 399_960, 0, -10, 5_000_040)
LAEA = {"crs": "EPSG:3035", "resolution": 10}
ALL = {
    name: {"formula": "red", "resampling": name}
    for name in ("nearest", "bilinear", "cubic", "lanczos", "average", "mode", "min", "max", "median")
}


def holes(bands, share=0.03, seed=5):
    """The same bands with nodata (0) at random places, other places in each."""
    rng = np.random.default_rng(seed)
    return [np.where(rng.random(band.shape) < share, 0, band) for band in bands]


def row(path, scene="S1", **more):
    return {"scene": scene, "sensor": "rednir", "path": str(path), "nodata": 0, **more}


@pytest.fixture(scope="module")
def scene(tmp_path_factory):
    return write_raster(
        tmp_path_factory.mktemp("scene") / "in.tif", holes(red_nir((900, 1100))), crs=UTM33, transform=NORTH_UP
    )


def make(folder, path, products=None, run=None, **keys):
    """Run a campaign of one scene; gives its ledger line and {product: (pixels, profile, tags)}."""
    folder.mkdir(exist_ok=True)
    made = prepare(folder, [row(path)], products, **keys)
    (line,) = compute_batch(**made.batch(**(run or {})))
    return line, {name: read(made, name) for name in line["products"]}, made


def read(made, name, scene="S1"):
    with rasterio.open(made.path("products", scene).parent / f"{name}.tif") as file:
        return file.read(1), file.profile, file.tags()


def same_bits(one, other):
    return one.dtype == other.dtype and one.tobytes() == other.tobytes()


def test_product_lies_on_the_target_lattice_and_says_how_it_came_there(scene, tmp_path):
    line, found, made = make(tmp_path, scene, grid=LAEA)
    assert line["state"] == "done", line["message"]
    pixels, profile, tags = found["ndvi"]
    assert profile["crs"] == rasterio.crs.CRS.from_epsg(3035)
    a, _, left, _, e, top = list(profile["transform"])[:6]
    assert (a, e) == (10, -10) and left % 10 == 0 and top % 10 == 0
    warp = json.loads(tags["COGMILL_WARP"])
    assert warp["resampling"] == {"nir": "bilinear", "red": "bilinear"} and warp["order"] == "bands_then_index"
    assert 0 < warp["error_px"] <= 0.01 and "UTM zone 33N" in warp["projection"]["name"]
    assert np.isfinite(pixels).mean() > 0.5
    assert read_json(made.path("grids", "S1"))["operation"] == "grid"


@pytest.mark.parametrize("order", ["bands_then_index", "index_then_warp"])
def test_same_bits_for_any_window_threads_and_memory(scene, tmp_path, order):
    keys = {"products": {**ALL, "ndvi": NDVI}, "grid": LAEA, "warp": {"order": order}}
    _, wanted, _ = make(tmp_path / "a", scene, run={"self_check": False}, **keys)
    for folder, run, threads in (("b", {"window": 1}, 1), ("c", {"window_mb": 16}, 3)):
        (tmp_path / folder).mkdir()
        made = prepare(tmp_path / folder, [row(scene)], **keys)
        (line,) = compute_batch(**made.batch(self_check=False, **run) | {"threads": threads})
        for name in wanted:
            assert same_bits(read(made, name)[0], wanted[name][0]), name
        assert {n: p["pixel_digest"] for n, p in line["products"].items()}.keys() == wanted.keys()


def test_small_blocks_change_no_bit(scene, tmp_path, monkeypatch):
    keys = {"products": ALL, "grid": {"crs": "EPSG:3035", "resolution": 40}, "warp": {"allow_aliasing": True}}
    _, wanted, _ = make(tmp_path / "a", scene, run={"self_check": False}, **keys)
    monkeypatch.setattr("cogmill.warp.LEAST_BLOCK_BYTES", 20_000)
    _, found, _ = make(tmp_path / "b", scene, run={"self_check": False, "window_mb": 0}, **keys)
    for name, (pixels, _, _) in wanted.items():
        assert same_bits(found[name][0], pixels), name


def test_bands_of_two_resolutions_share_one_target(tmp_path):
    """Planes a*x + b*y + c are their own bilinear interpolation: the product must be the plane at each centre."""
    y, x = np.mgrid[0:600, 0:600] + 0.5
    fine = write_raster(tmp_path / "red.tif", [(10 * x + 3 * y).astype("f4")], crs=UTM33, transform=NORTH_UP)
    coarse_y, coarse_x = (np.mgrid[0:300, 0:300] + 0.5) * 2
    coarse = (7 * coarse_x - 2 * coarse_y + 5000).astype("f4")
    write_raster(tmp_path / "nir.tif", [coarse], crs=UTM33, transform=NORTH_UP @ Affine.scale(2))
    products = {"sum": "red + nir", "coarse": "nir"}
    grid = {"crs": UTM33, "resolution": 8}
    rows = [{"scene": "S1", "sensor": "rednir", "path": str(tmp_path / "{band}.tif")}]
    made = prepare(tmp_path, rows, products, grid=grid)
    (line,) = compute_batch(**made.batch())
    assert line["state"] == "done", line["message"]
    assert fine.exists() and [source["bands"] for source in read_json(made.path("grids", "S1"))["sources"]] == [
        ["red"],
        ["nir"],
    ]
    pixels, profile, _ = read(made, "sum")
    cols, rows = np.meshgrid(np.arange(pixels.shape[1]) + 0.5, np.arange(pixels.shape[0]) + 0.5)
    u, v = ~NORTH_UP @ profile["transform"] @ (cols, rows)
    inside = (u > 1) & (v > 1) & (u < 599) & (v < 599)
    wanted = 10 * u + 3 * v + 7 * u - 2 * v + 5000
    assert np.abs(pixels - wanted)[inside].max() < 0.01
    assert np.isfinite(pixels[inside]).all() and not np.isfinite(pixels[(u < 0) | (v > 600)]).any()


SCL = """\
title: red, near infrared and classes
bands:
  red: {position: 1}
  nir: {position: 2}
  scl: {position: 3, kind: classes}
"""


def with_classes(tmp_path, bands, classes, **keys):
    """A campaign whose scene has a class band of its own on the same grid."""
    write_raster(tmp_path / "in.tif", [*bands, classes.astype(bands[0].dtype)], crs=UTM33, transform=NORTH_UP)
    (tmp_path / "sensors").mkdir()
    (tmp_path / "sensors" / "withscl.yaml").write_text(SCL, encoding="utf-8")
    made = prepare(tmp_path, [row(tmp_path / "in.tif") | {"sensor": "withscl", "nodata": ""}], **keys)
    (line,) = compute_batch(**made.batch())
    return line, made


@pytest.mark.parametrize("order", ["bands_then_index", "index_then_warp"])
@pytest.mark.parametrize("method", ["bilinear", "cubic", "lanczos"])
def test_clouds_do_not_bleed_into_their_neighbours(tmp_path, method, order):
    red = np.full((300, 300), 500, "u2")
    nir = np.full((300, 300), 2500, "u2")
    classes = np.where(np.random.default_rng(1).random(red.shape) < 0.1, 9, 4)
    red[classes == 9] = nir[classes == 9] = 60_000
    keys = {"masks": {"scl": {"classes": [9]}}, "warp": {"resampling": method, "order": order}, "grid": LAEA}
    line, made = with_classes(tmp_path, [red, nir], classes, products={"ndvi": NDVI}, **keys)
    assert line["state"] == "done", line["message"]
    pixels = read(made, "ndvi")[0]
    assert np.unique(pixels[np.isfinite(pixels)]).tolist() == [np.float32(2000 / 3000)]
    assert np.isfinite(pixels).mean() > 0.5


def test_classes_are_never_interpolated(tmp_path):
    classes = np.random.default_rng(2).choice([3, 8, 250], (300, 300))
    products = {
        "scl": {"formula": "scl", "dtype": "uint8", "kind": "classes"},
        "most": {"formula": "scl", "dtype": "uint8", "kind": "classes", "resampling": "mode"},
        "red": "red",
    }
    keys = {"warp": {"resampling": "average"}, "grid": {"crs": "EPSG:3035", "resolution": 30}}
    line, made = with_classes(tmp_path, red_nir((300, 300)), classes, products=products, **keys)
    assert line["state"] == "done", line["message"]
    for name in ("scl", "most"):
        assert set(np.unique(read(made, name)[0])) == {3, 8, 250, 255}
    tags = {name: json.loads(read(made, name)[2]["COGMILL_WARP"])["resampling"] for name in products}
    assert tags == {"scl": {"scl": "nearest"}, "most": {"scl": "mode"}, "red": {"red": "average"}}


def test_aliasing_is_refused_unless_allowed(scene, tmp_path):
    coarse = {"crs": "EPSG:3035", "resolution": 25}
    line, _, _ = make(tmp_path / "a", scene, grid=coarse)
    assert (line["state"], line["reason"]) == ("failed", "aliasing")
    assert "2.5" in line["message"] and "warp.resampling" in line["message"]
    for name, warp in (("b", {"allow_aliasing": True}), ("c", {"resampling": "average"})):
        line, _, _ = make(tmp_path / name, scene, grid=coarse, warp=warp)
        assert line["state"] == "done", line["message"]


def test_a_scene_off_the_target_is_skipped(scene, tmp_path):
    line, _, made = make(tmp_path, scene, grid=LAEA | {"extent": [1_000_000, 1_000_000, 1_010_000, 1_010_000]})
    assert (line["state"], line["reason"]) == ("skipped", "no_overlap")
    assert "overlap" in line["message"]
    assert not list(made.path("products", "S1").parent.glob("*.tif"))


def test_index_then_warp_differs_and_needs_bands_of_one_grid(scene, tmp_path):
    found = {}
    for order in ("bands_then_index", "index_then_warp"):
        line, products, _ = make(tmp_path / order, scene, grid=LAEA, warp={"order": order})
        assert line["state"] == "done", line["message"]
        found[order] = products["ndvi"][0]
    both = np.isfinite(found["bands_then_index"]) & np.isfinite(found["index_then_warp"])
    assert 1e-4 < np.abs(found["bands_then_index"] - found["index_then_warp"])[both].max() < 2


def test_only_what_the_resampling_decides_is_made_again(scene, tmp_path):
    keys = {"products": {"a": NDVI, "b": {"formula": "red", "resampling": "cubic"}}, "grid": LAEA}
    _, _, made = make(tmp_path, scene, **keys)
    before = {name: read_json(made.path("products", "S1"))["products"][name]["mtime_ns"] for name in "ab"}
    made = prepare(tmp_path, [row(scene)], **keys, warp={"resampling": "nearest"})
    compute_batch(**made.batch())
    after = {name: read_json(made.path("products", "S1"))["products"][name]["mtime_ns"] for name in "ab"}
    assert after["b"] == before["b"] and after["a"] != before["a"]


def test_resampling_of_scenes_that_keep_their_grid_redoes_nothing(scene, tmp_path):
    _, _, made = make(tmp_path, scene)
    before = read_json(made.path("products", "S1"))["products"]
    made = prepare(tmp_path, [row(scene)], warp={"resampling": "cubic", "order": "index_then_warp"})
    compute_batch(**made.batch())
    assert read_json(made.path("products", "S1"))["products"] == before


def test_engine_gdal_makes_the_same_products(scene, tmp_path):
    # not LAEA: from PROJ 9.6 its inverse differs by half a millimetre, and GDAL may have another PROJ than pyproj
    grid = {"crs": "EPSG:32632", "resolution": 10, "max_error_px": 0}
    keys = {"products": {**ALL, "ndvi": NDVI}, "grid": grid}
    _, wanted, _ = make(tmp_path / "a", scene, **keys)
    line, found, made = make(tmp_path / "b", scene, **keys, warp={"engine": "gdal"})
    assert line["state"] == "done", line["message"]
    for name, (pixels, _, _) in wanted.items():
        other = found[name][0]
        valid, fit = np.isfinite(pixels), np.isfinite(other)
        assert (valid != fit).mean() < 1e-4, name
        close = np.isclose(pixels, other, rtol=2e-5 if name == "lanczos" else 1e-6, atol=1e-6)[valid & fit]
        assert close.mean() > 0.9999, name
    assert not list(made.path("products", "S1").parent.glob(".*.tmp"))


def test_a_control_grid_that_was_changed_fails_the_scene(scene, tmp_path):
    made = prepare(tmp_path, [row(scene)], grid=LAEA)
    file = made.path("grids", "S1").parent / "grid.tif"
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    (line,) = compute_batch(**made.batch())
    assert line["state"] == "failed" and "grid.tif" in line["message"]


def test_whole_numbers_that_float32_cannot_hold_survive(tmp_path):
    values = np.random.default_rng(3).integers(2**24, 2**32 - 2, (300, 300), dtype="u4")
    path = write_raster(tmp_path / "in.tif", [values, values], crs=UTM33, transform=NORTH_UP)
    products = {"qa": {"formula": "red", "dtype": "uint32", "scale": 1, "resampling": "nearest"}}
    target = {"crs": UTM33, "resolution": 10}
    for name, grid in (("same", {}), ("shifted", target)):
        line, found, _ = make(tmp_path / name, path, products, **({"grid": grid} if grid else {}))
        assert line["state"] == "done", line["message"]
        pixels = found["qa"][0]
        assert set(pixels.ravel().tolist()) - {2**32 - 1} <= set(values.ravel().tolist()), name

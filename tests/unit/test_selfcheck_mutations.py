"""Whole runs whose arithmetic is made wrong on purpose: the self-check must end them."""

import dataclasses

import numpy as np
import pytest
from campaigns import run_campaign
from made import NDVI, write_raster
from rasterio.transform import Affine

from cogmill import pixels, store, warp
from cogmill.errors import CogmillError
from cogmill.kernels.cpu import Kernel, WarpKernel
from cogmill.ledger import read_json
from cogmill.resampling import METHODS
from cogmill.verdict import judge

SENSORS = {
    "land": {
        "red": {"position": 1},
        "nir": {"position": 2},
        "scl": {"position": 3, "kind": "classes"},
    }
}
TARGETS = {
    "identity": {},
    "affine": {"grid": {"resolution": 12}},
    "grid": {"grid": {"crs": "EPSG:32633", "resolution": 11}},
    "exact": {"grid": {"crs": "EPSG:32633", "resolution": 11, "max_error_px": 0}},
}


def land(shape=(260, 300)) -> list[np.ndarray]:
    """Red, NIR and scene classes: smooth fields with noise, holes of 0, patches of class 3."""
    rng = np.random.default_rng(7)
    rows, cols = np.indices(shape)
    bands = [
        base + 900 * np.sin(rows / 17 + base) * np.cos(cols / 13) + rng.normal(0, 60, shape) for base in (2600, 4000)
    ]
    hole = (rows - 60) ** 2 + (cols - 200) ** 2 < 90
    classes = np.where((rows // 40 + cols // 40) % 5 == 0, 3, 4)
    return [np.where(hole, 0, band).astype(np.uint16) for band in bands] + [classes.astype(np.uint16)]


def run(folder, target: str, products: dict | None = None, **keys):
    """Campaign of one scene on a target of TARGETS: its ledger line, and what it lies in."""
    transform = Affine(10, 0, 690000, 0, -10, 5001000)
    path = write_raster(folder / "in.tif", land(), crs="EPSG:32632", transform=transform)
    row = {"scene": "S", "sensor": "land", "path": str(path), "scale": 1e-4, "offset": -0.1, "nodata": 0}
    keys = TARGETS[target] | {"masks": {"scl": {"classes": [3]}}} | keys
    made = run_campaign(folder, [row], products or {"ndvi": NDVI}, SENSORS, **keys)
    return made.lines["S"], made


@pytest.mark.parametrize("target", TARGETS)
def test_an_honest_run_passes(tmp_path, target):
    line, made = run(tmp_path, target)
    assert line["state"] == "done", line["message"]
    assert read_json(made.made.path("grids", "S"))["operation"] == target
    check = read_json(made.made.path("products", "S"))["self_check"]
    assert check == line["self_check"] and check["passed"]
    assert check["products"]["ndvi"]["wrong"] == 0 < check["products"]["ndvi"]["compared"]


@pytest.mark.parametrize("order", ["bands_then_index", "index_then_warp"])
def test_an_honest_run_passes_with_every_method(tmp_path, order):
    products = {method: {"formula": "red", "resampling": method} for method in METHODS}
    warp = {"order": order, "allow_aliasing": True}
    line, _ = run(tmp_path, "grid", products, warp=warp, grid={"crs": "EPSG:32633", "resolution": 23})
    assert line["state"] == "done", line["message"]
    assert line["self_check"]["passed"] and line["self_check"]["products"].keys() == products.keys()


def test_an_honest_run_through_gdal_passes(tmp_path):
    line, _ = run(tmp_path, "grid", warp={"engine": "gdal"})
    assert line["state"] == "done", line["message"]
    assert line["self_check"]["passed"]


def test_it_can_be_left_out(tmp_path):
    line, _ = run(tmp_path, "identity", self_check=False)
    assert line["state"] == "done" and line["self_check"] is None


def more(patch):
    """Kernels add a thousandth."""
    for kind in (Kernel, WarpKernel):
        _add_to(patch, kind)


def _add_to(patch, kind):
    honest = kind.__call__

    def call(self, *args, **kwargs):
        counts = honest(self, *args, **kwargs)
        for array in args[-1]:
            array += array.dtype.type(1e-3)
        return counts

    patch.setattr(kind, "__call__", call)


def elsewhere(patch):
    """Coordinates are those of the pixels' corners; without a warp, bands are read a column further."""
    honest = warp.Coordinates.of

    def moved(self, window, corners):
        x, y = honest(self, window, corners)
        return x + 0.5, y

    patch.setattr(warp.Coordinates, "of", moved)
    reading = pixels.SameGrid.__init__

    def opened(self, *args, **kwargs):
        reading(self, *args, **kwargs)
        for reader in self.bands:
            patch.setattr(reader, "read", lambda window, read=reader.read: _rolled(*read(window)))

    patch.setattr(pixels.SameGrid, "__init__", opened)


def _rolled(values, valid):
    return np.roll(values, 1, axis=1), valid


def unmasked(patch):
    """The scene's masks are forgotten."""
    patch.setattr(store.Masks, "read", lambda self, window: None)


def uncalibrated(patch):
    """The radiometric offset is forgotten."""
    for module in (pixels, warp):
        honest = module.band_input

        def band_input(inputs, name, honest=honest):
            return dataclasses.replace(honest(inputs, name), offset=0.0)

        patch.setattr(module, "band_input", band_input)


def nodata_taken(patch):
    """Nodata is taken for a value."""
    for module in (pixels, warp):
        honest = module.band_input

        def band_input(inputs, name, honest=honest):
            return dataclasses.replace(honest(inputs, name), nodata=None)

        patch.setattr(module, "band_input", band_input)


def nearest(patch):
    """Every band is resampled by nearest neighbour."""
    patch.setattr(warp, "band_method", lambda method, kind: "nearest")


MISTAKES = [more, elsewhere, unmasked, uncalibrated, nodata_taken, nearest]


@pytest.mark.parametrize(
    ("target", "mistake"),
    [
        *(("grid", mistake) for mistake in MISTAKES),
        *(("identity", mistake) for mistake in MISTAKES if mistake is not nearest),
        ("affine", elsewhere),
        ("exact", more),
    ],
    ids=lambda part: getattr(part, "__name__", part),
)
def test_a_mistake_fails_the_scene_and_the_campaign(tmp_path, monkeypatch, target, mistake):
    mistake(monkeypatch)
    line, made = run(tmp_path, target)
    assert (line["state"], line["reason"]) == ("failed", "self_check")
    assert line["self_check"]["passed"] is False and line["self_check"]["products"]["ndvi"]["wrong"] > 0
    for word in ("scene 'S'", "product 'ndvi'", "tile (0, 0)", "found", "wanted"):
        assert word in line["message"]
    assert not line["products"] and not made.product("S").exists()
    with pytest.raises(CogmillError, match="S: ndvi"):
        judge([made.made.results / "ledger" / "S.jsonl"], ["S"], 1.0, tmp_path / "verdict.txt")


def test_a_mistake_in_one_product_names_that_one(tmp_path, monkeypatch):
    honest = WarpKernel.__call__

    def call(self, *args):
        counts = honest(self, *args)
        args[-1][1][...] += 1
        return counts

    monkeypatch.setattr(WarpKernel, "__call__", call)
    packed = {"formula": "red", "dtype": "int16", "scale": 1e-4}
    line, _ = run(tmp_path, "grid", {"ndvi": NDVI, "red": packed})
    assert line["reason"] == "self_check"
    wrong = {name: found["wrong"] for name, found in line["self_check"]["products"].items()}
    assert wrong["ndvi"] == 0 < wrong["red"]

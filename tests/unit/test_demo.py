"""The demo's makers: always the same files, a landscape worth looking at, and a check that catches wrong products."""

import contextlib
import csv
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import rasterio
import rasterio.warp
import yaml
from rasterio.enums import Resampling
from rasterio.io import MemoryFile
from rasterio.transform import Affine
from rasterio.vrt import WarpedVRT

DEMO = Path(__file__).resolve().parents[1] / "demo"
sys.path.insert(0, str(DEMO))

import check_demo  # noqa: E402
import make_scenes as demo  # noqa: E402


@pytest.fixture(scope="module")
def campaign(tmp_path_factory) -> Path:
    """The demo's folder, made once."""
    folder = tmp_path_factory.mktemp("demo")
    demo.make_campaign(folder)
    return folder


def read(folder, scene, band):
    with rasterio.open(folder / scene.path(band)) as source:
        return source.read(1), source.nodata


SOME = (demo.SCENES[0], demo.SCENES[1], demo.SCENES[3])  # both zones on one day, and the other sensor


@pytest.fixture(scope="module")
def products(campaign) -> Path:
    """Products of some scenes, made by GDAL with (nearly) exact coordinates."""
    home = campaign / "results" / "products"
    for scene in SOME:
        (home / scene.name).mkdir(parents=True)
        make_products(campaign, scene, home / scene.name)
    (home / demo.DAMAGED.name).mkdir()
    (home / demo.DAMAGED.name / "record.json").write_text(
        '{"state": "failed", "reason": "unreadable", "message": "the file is cut off"}'
    )
    return home


@pytest.fixture
def checked(products, monkeypatch):
    """Run the check on those scenes."""
    monkeypatch.setattr(check_demo, "SCENES", SOME)
    monkeypatch.setattr(sys, "argv", ["check_demo.py", str(products.parents[1])])
    return check_demo.main


def make_products(campaign, scene, home, tolerance=1e-6):
    """What gdalwarp makes of a scene whose masked pixels are NaN, `tolerance` in pixels."""
    rows, cols = scene.shape
    outline = scene.origin[0], scene.origin[1] - rows * scene.pixel, scene.origin[0] + cols * scene.pixel
    bounds = rasterio.warp.transform_bounds(scene.crs, demo.TARGET_CRS, *outline, scene.origin[1], densify_pts=500)
    step = demo.RESOLUTION
    left, bottom = (np.floor(edge / step) * step for edge in bounds[:2])
    right, top = (np.ceil(edge / step) * step for edge in bounds[2:])
    grid = {"crs": demo.TARGET_CRS, "transform": Affine(step, 0, left, 0, -step, top)}
    grid |= {"width": round((right - left) / step), "height": round((top - bottom) / step)}
    bands = {}
    for band in ("nir", "red", "swir16"):
        with rasterio.open(campaign / scene.path(band)) as source:
            profile, value = source.profile, source.read(1) * scene.scale + scene.offset
        value[~check_demo.clear_truth(scene, scene.factor(band))] = np.nan
        profile = {"driver": "GTiff", "count": 1, "dtype": "float32", "nodata": np.nan} | {
            key: profile[key] for key in ("crs", "transform", "width", "height")
        }
        options = {"resampling": Resampling.bilinear, "tolerance": tolerance, "XSCALE": 1, "YSCALE": 1}
        with MemoryFile() as memory:
            with memory.open(**profile) as target:
                target.write(value.astype(np.float32), 1)
            with memory.open() as source, WarpedVRT(source, **grid, **options, num_threads=2) as warped:
                bands[band] = warped.read(1)
    for name, (first, second) in check_demo.PRODUCTS.items():
        value = (bands[first] - bands[second]) / (bands[first] + bands[second])
        write(home / f"{name}.tif", name, value, grid)


def write(path, name, value, grid):
    """Write NDVI as float32, NDMI packed."""
    packed = name == "ndmi"
    stored = np.where(np.isnan(value), -32768, np.floor(value / 1e-4 + 0.5)) if packed else value
    profile = {"driver": "GTiff", "count": 1, **grid}
    profile |= {"dtype": "int16", "nodata": -32768} if packed else {"dtype": "float32", "nodata": np.nan}
    with rasterio.open(path, "w", **profile) as target:
        target.write(stored.astype(profile["dtype"]), 1)
        target.scales = (1e-4 if packed else 1.0,)


def test_second_making_writes_only_what_is_not_as_it_must_be(campaign):
    path = campaign / demo.SCENES[3].path("red")
    good = path.read_bytes()
    path.write_bytes(good[:-1])
    before = {file: file.stat().st_mtime_ns for file in campaign.rglob("*") if file.is_file() and file != path}
    assert demo.make_campaign(campaign) == 1
    assert path.read_bytes() == good
    assert {file: file.stat().st_mtime_ns for file in before} == before


def test_makers_import_nothing_of_cogmill():
    code = "import sys, make_scenes, check_demo; sys.exit(any(name.startswith('cogmill') for name in sys.modules))"
    subprocess.run([sys.executable, "-c", code], cwd=DEMO, check=True)


def test_files_look_like_the_agencies(campaign):
    scene = demo.SCENES[0]
    assert (campaign / "sentinel2/20230615/T32TQM_20230615T101031_B04_10m.tif").exists()
    with rasterio.open(campaign / scene.path("red")) as red, rasterio.open(campaign / scene.path("scl")) as scl:
        assert (red.dtypes[0], red.nodata, red.res, red.shape) == ("uint16", 0, (10.0, 10.0), (960, 1240))
        assert (scl.res, scl.bounds) == ((20.0, 20.0), red.bounds)
    with rasterio.open(campaign / demo.SCENES[3].path("qa_pixel")) as source:
        assert (source.dtypes[0], source.nodata, source.res) == ("uint16", 1, (30.0, 30.0))


def test_scenes_of_two_zones_lie_on_the_lattices_of_their_tiles(campaign):
    zones = set()
    for scene in demo.SCENES[:3]:
        with rasterio.open(campaign / scene.path("red")) as source:
            zones.add(source.crs.to_epsg())
            assert source.transform.c % 60 == 0 and source.transform.f % 60 == 0
    assert zones == {32632, 32633}


def test_sheet_and_config_name_existing_files(campaign):
    config = yaml.safe_load((campaign / "config.yaml").read_text())
    with open(campaign / config["sheet"], newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    scenes = {scene.name: scene for scene in (*demo.SCENES, demo.DAMAGED)}
    assert [row["scene"] for row in rows] == list(scenes)
    for row in rows:
        for token in scenes[row["scene"]].files.values():
            assert (campaign / row["path"].replace("{band}", token)).exists()


@pytest.mark.parametrize("scene", demo.SCENES, ids=lambda scene: scene.name)
def test_scenes_hold_clouds_shadows_water_and_nodata(campaign, scene):
    band = "scl" if "scl" in scene.files else "qa_pixel"
    codes, _ = read(campaign, scene, band)
    wanted = (demo.SHADOW, demo.VEGETATION, demo.WATER, demo.CLOUD)
    for kind in wanted:
        code = kind if band == "scl" else demo.QA_VALUES[kind]
        assert (codes == code).mean() > 0.005
    if scene.edges:
        assert 0.03 < (read(campaign, scene, "red")[0] == 0).mean() < 0.4


def test_fields_change_between_the_dates_and_water_does_not():
    x, y = demo.SCENES[0].centres()
    land = demo.ground(*np.broadcast_arrays(x[:, ::8], y[::8]))
    (june_red, june), (august_red, august) = (
        [demo.reflectance(land, scene.day, band) for band in ("red", "nir")]
        for scene in (demo.SCENES[0], demo.SCENES[2])
    )
    fields = (land.water == 0) & (land.forest < 0.1) & (land.built == 0)
    change = (june - june_red) / (june + june_red) - (august - august_red) / (august + august_red)
    assert np.abs(change[fields]).mean() > 0.1
    assert (june == august)[land.water > 0].all()


def test_damaged_file_opens_but_cannot_be_read(campaign):
    with rasterio.open(campaign / demo.DAMAGED.path("nir")) as source, pytest.raises(rasterio.errors.RasterioIOError):
        source.read(1)
    read(campaign, demo.DAMAGED, "red")


def test_true_products_pass(checked, capsys):
    checked()
    shown = capsys.readouterr().out
    assert all(f"{scene.name} " in shown for scene in SOME)
    assert "report.html" in shown and "the file is cut off" in shown and "on one day agree" in shown


def test_products_of_gdalwarps_default_tolerance_fail(campaign, checked, products):
    """An eighth of a pixel is more than the check lets pass, so it sees what a warp that is not exact does."""
    with kept(products / SOME[2].name):
        make_products(campaign, SOME[2], products / SOME[2].name, tolerance=0.125)
        with pytest.raises(SystemExit, match=f"{SOME[2].name}/ndvi.tif"):
            checked()


@contextlib.contextmanager
def kept(folder):
    """Whatever is done to the files of a folder is undone at the end."""
    before = {path: path.read_bytes() for path in folder.iterdir()}
    try:
        yield
    finally:
        for path, data in before.items():
            path.write_bytes(data)


FAULTS = {
    "a shift of a tenth of a pixel": "off the truth",
    "a wrong offset": "off the truth",
    "a pixel too many": "off the truth",
    "a pixel too few": "off the truth",
    "a missing product": "Missing",
    "an origin off the lattice": "off the lattice",
    "a row too many": "does not enclose its scene as tightly",
    "another CRS": "EPSG:3034",
}


@pytest.mark.parametrize("fault", FAULTS)
def test_wrong_products_fail(products, checked, monkeypatch, fault):
    scene = SOME[2]
    path = products / scene.name / "ndvi.tif"
    with kept(products / scene.name):
        with rasterio.open(path) as source:
            value = source.read(1)
            grid = {key: source.profile[key] for key in ("crs", "transform", "width", "height")}
        middle = tuple(np.argwhere(np.isfinite(value)).mean(axis=0).astype(int))
        if fault == "a missing product":
            os.remove(path)
        elif fault == "a shift of a tenth of a pixel":
            value = value + 0.1 * (np.roll(value, 1, axis=0) - value)
        elif fault == "a wrong offset":
            value = value + 2e-3
        elif fault == "a pixel too many":
            value[tuple(np.argwhere(np.isnan(value))[0])] = 0.5
        elif fault == "a pixel too few":
            value[middle] = np.nan
        elif fault == "an origin off the lattice":
            grid["transform"] = Affine.translation(0.5, 0) @ grid["transform"]
        elif fault == "a row too many":
            value, grid["height"] = np.pad(value, ((0, 1), (0, 0)), constant_values=np.nan), grid["height"] + 1
        elif fault == "another CRS":
            grid["crs"] = "EPSG:3034"
        if path.exists():
            write(path, "ndvi", value, grid)
        monkeypatch.setattr(check_demo, "SCENES", (scene,))
        monkeypatch.setattr(check_demo, "zones_agree", lambda products: (True, ""))
        with pytest.raises(SystemExit) as end:
            checked()
        assert FAULTS[fault] in str(end.value) and f"{scene.name}/ndvi.tif" in str(end.value)


def test_zones_that_lie_a_pixel_aside_do_not_agree(products):
    """Each product may fit its own scene: that the two fit each other is looked at on its own."""
    path = products / SOME[1].name / "ndvi.tif"
    with kept(products / SOME[1].name):
        with rasterio.open(path) as source:
            value = source.read(1)
            grid = {key: source.profile[key] for key in ("crs", "transform", "width", "height")}
        assert check_demo.zones_agree(products)[0]
        write(path, "ndvi", np.roll(value, 1, axis=1), grid)
        assert not check_demo.zones_agree(products)[0]

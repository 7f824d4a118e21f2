"""The demo's makers: always the same files, a landscape worth looking at, and a check that catches wrong products."""

import csv
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import rasterio
import yaml

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


@pytest.fixture(scope="module")
def products(campaign) -> Path:
    """Products of the demo, made with plain NumPy."""
    home = campaign / "results" / "products"
    for scene in demo.SCENES:
        clear = check_demo.clear_truth(scene)
        bands = {band: read(campaign, scene, band)[0] * scene.scale + scene.offset for band in ("green", "red", "nir")}
        (home / scene.name).mkdir(parents=True)
        for name, (first, second) in check_demo.PRODUCTS.items():
            value = (bands[first] - bands[second]) / (bands[first] + bands[second])
            write(home / scene.name / f"{name}.tif", name, np.where(clear, value, np.nan))
    (home / demo.DAMAGED.name).mkdir()
    (home / demo.DAMAGED.name / "record.json").write_text(
        '{"state": "failed", "reason": "unreadable", "message": "the file is cut off"}'
    )
    return home


def write(path, name, value):
    """Write NDVI as float32, NDWI packed."""
    packed = name == "ndwi"
    stored = np.where(np.isnan(value), -32768, np.floor(value / 1e-4 + 0.5)) if packed else value
    profile = {"driver": "GTiff", "width": value.shape[1], "height": value.shape[0], "count": 1}
    profile |= {"dtype": "int16", "nodata": -32768} if packed else {"dtype": "float32", "nodata": np.nan}
    with rasterio.open(path, "w", **profile) as target:
        target.write(stored.astype(profile["dtype"]), 1)
        target.scales = (1e-4 if packed else 1.0,)


def test_second_making_writes_only_what_is_not_as_it_must_be(campaign):
    path = campaign / demo.SCENES[2].path("red")
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
        assert (red.dtypes[0], red.nodata, red.res, red.shape) == ("uint16", 0, (10.0, 10.0), (1400, 1600))
        assert (scl.res, scl.bounds) == ((20.0, 20.0), red.bounds)
    with rasterio.open(campaign / demo.SCENES[2].path("qa_pixel")) as source:
        assert (source.dtypes[0], source.nodata, source.res) == ("uint16", 1, (30.0, 30.0))


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
        [demo.reflectance(land, scene.day, band) for band in ("red", "nir")] for scene in demo.SCENES[:2]
    )
    fields = (land.water == 0) & (land.forest < 0.1) & (land.built == 0)
    change = (june - june_red) / (june + june_red) - (august - august_red) / (august + august_red)
    assert np.abs(change[fields]).mean() > 0.1
    assert (june == august)[land.water > 0].all()


def test_damaged_file_opens_but_cannot_be_read(campaign):
    with rasterio.open(campaign / demo.DAMAGED.path("nir")) as source, pytest.raises(rasterio.errors.RasterioIOError):
        source.read(1)
    read(campaign, demo.DAMAGED, "red")


def test_true_products_pass(products, capsys, monkeypatch):
    folder = products.parents[1]
    monkeypatch.setattr(sys, "argv", ["check_demo.py", str(folder)])
    check_demo.main()
    shown = capsys.readouterr().out
    assert all(f"{scene.name} " in shown for scene in demo.SCENES)
    assert "report.html" in shown and "the file is cut off" in shown


@pytest.mark.parametrize("fault", ["a shift of a pixel", "a wrong offset", "a pixel too many", "a missing product"])
def test_wrong_products_fail(products, monkeypatch, fault):
    path = products / demo.SCENES[2].name / "ndvi.tif"
    good = path.read_bytes()
    try:
        with rasterio.open(path) as source:
            value = source.read(1)
        if fault == "a missing product":
            os.remove(path)
        elif fault == "a shift of a pixel":
            write(path, "ndvi", np.roll(value, 1, axis=0))
        elif fault == "a wrong offset":
            write(path, "ndvi", value + 2e-3)
        else:
            row, col = np.argwhere(np.isnan(value))[0]
            value[row, col] = 0.5
            write(path, "ndvi", value)
        monkeypatch.setattr(check_demo, "SCENES", demo.SCENES[2:3])
        monkeypatch.setattr(sys, "argv", ["check_demo.py", str(products.parents[1])])
        with pytest.raises(SystemExit) as end:
            check_demo.main()
        assert f"{demo.SCENES[2].name}/ndvi.tif" in str(end.value)
    finally:
        path.write_bytes(good)

"""Config, sheet and sensors together, and what jobs are given."""

import json
import pickle
import random
import subprocess
import sys
from pathlib import Path

import pytest
import shipped
import yaml

from cogmill.campaign import LONGEST, Campaign, cut_batches
from cogmill.errors import ConfigError
from cogmill.ledger import ingest_key
from cogmill.scenes import sidecars

ROOT = Path(__file__).resolve().parents[2]
CONFIG = "products: {ndvi: (nir - red) / (nir + red)}\nsheet: s.csv\nsensors: own\n"
SHEET = "scene,sensor,path\nS1,sentinel2_l2a,s1_{band}.tif\nL1,landsat8_l2,l1_{band}.tif\n"
LANDSAT = "scene,sensor,path\nL1,landsat8_l2,l1_{band}.tif\n"


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("s1_B04", "s1_B08", "s1_SCL", "l1_SR_B4", "l1_SR_B5", "l1_QA_PIXEL"):
        Path(f"{name}.tif").touch()
    return tmp_path


def campaign(config: str = CONFIG, sheet: str | None = SHEET, check_files: bool = True) -> Campaign:
    if sheet is not None:
        Path("s.csv").write_text(sheet, encoding="utf-8")
    return Campaign.from_config(yaml.safe_load(config), [("c.yaml", config)], check_files)


def mistakes(*args) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        campaign(*args)
    return str(caught.value).splitlines()[1:]


def test_a_campaign_holds_what_was_asked_for():
    made = campaign()
    assert list(made.scenes) == ["S1", "L1"]
    assert made.products == ["ndvi"]
    assert made.batches == {"S1": ["S1", "L1"]}


def test_only_bands_that_products_or_masks_need_are_stored():
    made = campaign(CONFIG + "masks: {scl: {classes: [8]}, qa_pixel: {bits: [3]}}\n")
    assert made.needed_bands("S1") == ["red", "nir", "scl"]
    assert made.needed_bands("L1") == ["red", "nir", "qa_pixel"]
    assert made.ingest_params("L1")["bands"] == ["red", "nir", "qa_pixel"]


def test_all_bands_are_stored_where_asked_for_but_only_needed_ones_must_be_there():
    made = campaign(CONFIG + "cog: {bands: all}\n")
    assert made.needed_bands("L1") == list(made.scenes["L1"].sensor.bands)
    assert made.source_files("L1") == ["l1_SR_B4.tif", "l1_SR_B5.tif", "l1_QA_PIXEL.tif"]


def test_ingest_params():
    made = campaign(
        CONFIG + "max_attempts: 2\n",
        SHEET.replace("path\n", "path,nodata\n").replace("l1_{band}.tif", "l1_{band}.tif,nan"),
    )
    params = made.ingest_params("L1")
    assert params["row"]["nodata"] == "nan"
    assert params["row"]["sensor"] == params["sensor"]["name"] == "landsat8_l2"
    assert params["cog"] == {"bands": "needed", "overviews": False, "zstd_level": 9}
    assert params["max_attempts"] == 2


def test_a_mask_that_no_scene_of_the_batch_has_is_not_part_of_its_params():
    made = campaign(CONFIG + "masks: {scl: {classes: [8, 3, 8]}, qa_pixel: {bits: [3]}}\n")
    assert made.compute_params(["S1"])["masks"] == {"scl": {"classes": [3, 8], "bits": []}}
    assert list(made.compute_params(["S1", "L1"])["masks"]) == ["qa_pixel", "scl"]


def test_what_changes_no_pixel_is_not_among_the_params_that_do():
    plain = campaign()
    text = (
        CONFIG.replace("nir - red", "nir  -red")
        + "scenes_per_job: 1\nmemory: {window_mb: 16}\ncompute: {zstd_level: 1, window: 2}\n"
    )
    other = campaign(text)
    assert plain.compute_params(["S1"]) == other.compute_params(["S1"])
    assert plain.grid_params("S1") == other.grid_params("S1")
    assert other.run_params() == plain.run_params() | {"window_mb": 16, "zstd_level": 1, "window": 2}


def test_one_product_can_be_asked_for():
    made = campaign(CONFIG.replace("red)}", "red), r: red}"))
    assert list(made.compute_params(["S1"], product="r")["products"]) == ["r"]
    assert list(made.compute_params(["S1"])["products"]) == ["ndvi", "r"]


def test_grid_params_name_the_bands_that_must_share_a_grid():
    made = campaign(CONFIG + "masks: {scl: {classes: [8]}}\n")
    params = made.grid_params("S1")
    assert (params["bands"], params["masks"]) == (["nir", "red"], ["scl"])
    assert made.grid_params("L1")["masks"] == []  # its sensor has no such band


TARGET = "grid: {crs: EPSG:3035, resolution: 20, extent: [0, 0, 100, 200]}\n"


def test_grid_params_say_which_target_is_wanted():
    made = campaign(CONFIG + TARGET + "warp: {engine: gdal, allow_ballpark: true}\n").grid_params("S1")
    del made["bands"], made["masks"]
    assert made == {
        "crs": "EPSG:3035",
        "resolution": [20.0, 20.0],
        "aligned": True,
        "extent": [0.0, 0.0, 100.0, 200.0],
        "like": None,
        "max_error_px": 0.01,
        "engine": "gdal",
        "allow_ballpark": True,
    }
    plain = campaign().grid_params("S1")
    assert (plain["crs"], plain["resolution"], plain["extent"], plain["like"]) == ("source", None, "scene", None)


def test_another_resampling_redoes_products_and_no_grid():
    plain, other = campaign(), campaign(CONFIG + "warp: {resampling: cubic, order: index_then_warp}\n")
    assert plain.grid_params("S1") == other.grid_params("S1")
    assert other.compute_params(["S1"])["products"]["ndvi"]["resampling"] == "cubic"
    assert other.compute_params(["S1"])["warp"] == {"order": "index_then_warp", "allow_aliasing": False}
    assert plain.compute_params(["S1"])["products"]["ndvi"]["resampling"] == "bilinear"


def test_the_self_check_changes_no_pixel():
    plain, other = campaign(), campaign(CONFIG + "self_check: false\n")
    assert plain.compute_params(["S1"]) == other.compute_params(["S1"])
    assert (plain.run_params()["self_check"], other.run_params()["self_check"]) == (True, False)


def test_a_target_like_a_file_needs_that_file():
    (line,) = mistakes(CONFIG + "grid: {like: dem.tif}\n")
    assert line.startswith("c.yaml:4:14: key 'grid.like': the file dem.tif is not found (seen from ")
    assert campaign(CONFIG + "grid: {like: dem.tif}\n", check_files=False).like_files() == []
    Path("dem.tif").touch()
    assert campaign(CONFIG + "grid: {like: dem.tif}\n").like_files() == ["dem.tif"]
    Path("dem.tfw").touch()
    assert campaign(CONFIG + "grid: {like: dem.tif}\n").like_files() == ["dem.tif", "dem.tfw"]
    assert campaign(CONFIG + "grid: {like: /vsicurl/https://x/dem.tif}\n").like_files() == []
    assert campaign().like_files() == []


@pytest.mark.parametrize("method", ["bilinear", "cubic", "lanczos", "average", "median"])
@pytest.mark.parametrize(("band", "kind"), [("scl", "classes"), ("qa_pixel", "bits")])
def test_a_product_of_codes_is_not_interpolated(method, band, kind):
    product = f"{{formula: {band}, dtype: uint8, kind: {kind}, resampling: {method}}}"
    row = {"scl": "S1,sentinel2_l2a,s1_{band}.tif", "qa_pixel": "L1,landsat8_l2,l1_{band}.tif"}[band]
    (line,) = mistakes(f"sheet: s.csv\nproducts: {{a: {product}}}\n", f"scene,sensor,path\n{row}\n")
    assert f"key 'products.a.resampling': '{method}', but classes are never interpolated: band '{band}'" in line
    assert line.endswith(f"holds {kind}; leave it out")
    assert line.startswith("c.yaml:2:")


@pytest.mark.parametrize("method", ["nearest", "mode", "min", "max"])
def test_a_product_of_codes_may_choose_among_them(method):
    product = f"{{formula: scl, dtype: uint8, kind: classes, resampling: {method}}}"
    sheet = SHEET.rsplit("L1", 1)[0]
    made = campaign(f"sheet: s.csv\nproducts: {{a: {product}}}\nwarp: {{resampling: cubic}}\n", sheet)
    assert made.compute_params(["S1"])["products"]["a"]["resampling"] == method


def test_a_product_of_codes_that_is_itself_resampled_is_not_interpolated():
    product = "products: {a: {formula: red, dtype: uint8, kind: classes, resampling: cubic}}\nsheet: s.csv\n"
    assert campaign(product).products == ["a"]
    (line,) = mistakes(product + "warp: {order: index_then_warp}\n")
    assert "with warp.order 'index_then_warp' the product itself is resampled, and holds classes" in line


def test_params_are_built_in_types():
    made = campaign(CONFIG + TARGET + "masks: {scl: {classes: [8]}}\n")
    params = [made.ingest_params("S1"), made.compute_params(["S1", "L1"]), made.grid_params("S1"), made.run_params()]
    assert json.loads(json.dumps(params, allow_nan=False)) == params
    assert pickle.loads(pickle.dumps(made)).compute_params(["S1"]) == made.compute_params(["S1"])


def test_source_files_are_those_that_are_there():
    Path("m.tif").touch()
    made = campaign(
        sheet="scene,sensor,path,mask\nS1,sentinel2_l2a,s1_{band}.tif,m.tif\nS2,rgbn,/vsicurl/https://x/a.tif,\n"
    )
    assert made.source_files("S1") == ["s1_B04.tif", "s1_B08.tif", "m.tif"]
    assert made.source_files("S2") == []
    Path("s1_B04.tif").unlink()
    again = campaign(sheet=None, check_files=False)
    assert again.source_files("S1") == ["s1_B08.tif", "m.tif"]
    with pytest.raises(ConfigError, match="not found"):
        campaign(sheet=None)


def test_sidecars_are_watched_and_stay_inputs_when_they_are_lost():
    beside = ["s1_B04.tif.aux.xml", "s1_B08.tif.msk", "s1_B08.tfw"]
    for name in (*beside, "s1_B04.tif.ovr", "s1_B04.txt", "s1_SCL.tif.aux.xml"):
        Path(name).touch()
    made = campaign()
    files = ["s1_B04.tif", "s1_B08.tif", *beside]
    assert made.source_files("S1") == made.source_files("S1", with_lost=True, record="record.json") == files
    sources = [{"path": path, "sidecars": sidecars(path)} for path in files[:2]]
    Path("record.json").write_text(json.dumps({"sources": sources}))
    for name in files:
        Path(name).unlink()
    assert made.source_files("S1") == []
    assert made.source_files("S1", with_lost=True, record="record.json") == files
    assert made.source_files("S1", with_lost=True, record="none.json") == files[:2]


@pytest.mark.parametrize("number", ["1e999", "-inf", "9" * 5000])
def test_a_nodata_beyond_all_numbers(number):
    (line,) = mistakes(
        CONFIG, SHEET.replace("path\n", "path,nodata\n").replace("s1_{band}.tif", f"s1_{{band}}.tif,{number}")
    )
    assert line.startswith("s.csv:2:4: column 'nodata': ")


def lost(config: str, stored) -> Campaign:
    return Campaign.from_config(yaml.safe_load(config), [("c.yaml", config)], True, stored)


def test_files_may_be_lost_once_their_scene_is_stored_as_asked():
    params = campaign().ingest_params("S1")
    params.pop("max_attempts")
    params.pop("spool_mb")
    key, asked = ingest_key(**params), []

    def stored(scene, wanted):
        asked.append(scene)
        return wanted == key

    Path("s1_B04.tif").unlink()
    assert lost(CONFIG, stored).source_files("S1") == ["s1_B08.tif"]
    assert asked == ["S1"]  # of scenes whose files are there nobody asks
    for change in ("masks: {scl: {classes: [8]}}\n", "cog: {overviews: true}\n"):
        with pytest.raises(ConfigError, match=r"s\.csv:2:3: .*s1_B04\.tif"):
            lost(CONFIG + change, stored)
    Path("s.csv").write_text(SHEET.replace("path\n", "path,nodata\n").replace("s1_{band}.tif", "s1_{band}.tif,7"))
    with pytest.raises(ConfigError, match=r"s\.csv:2:3: .*s1_B04\.tif"):
        lost(CONFIG, stored)


def test_of_a_config_with_mistakes_any_stored_scene_will_do():
    Path("s.csv").write_text(SHEET, encoding="utf-8")
    Path("s1_B04.tif").unlink()
    with pytest.raises(ConfigError) as caught:
        lost(CONFIG + "cog: {zstd_level: 40}\n", lambda scene, key: key is None)
    assert "not found" not in str(caught.value)


def test_lost_files_stay_inputs_of_a_stored_scene():
    made = campaign(CONFIG + "cog: {bands: all}\n", SHEET.replace("path\n", "path,mask\n").replace("tif\n", "tif,\n"))
    assert made.source_files("S1", with_lost=True) == made.source_files("S1")  # no band that may be absent is lost
    Path("s1_B08.tif").unlink()
    assert made.source_files("S1", with_lost=True) == ["s1_B04.tif", "s1_B08.tif", "s1_SCL.tif"]
    Path("m.tif").touch()
    made = campaign(sheet="scene,sensor,path,mask\nS2,rgbn,/vsicurl/https://x/a.tif,m.tif\n")
    Path("m.tif").unlink()
    assert made.source_files("S2", with_lost=True) == ["m.tif"]


def test_mistakes_of_config_sheet_and_sensors_come_in_one_message():
    Path("own").mkdir()
    Path("own/mine.yaml").write_text("title: 5\nbands: {red: {}}\n", encoding="utf-8")
    lines = mistakes(
        CONFIG + "cog: {zstd_level: 40}\nmasks: {slc: {bits: [1]}}\n",
        SHEET + "S1,rgbn,gone.tif\nS3,mine,gone.tif\nS/4,rgb,\n",
    )
    places = [line.split(": ")[0] for line in lines]
    assert places == [
        "c.yaml:4:19",
        "s.csv:4:1",
        "s.csv:4:3",
        "own/mine.yaml:1:8",
        "s.csv:6:1",
        "s.csv:6:3",
        "s.csv:6:2",
        "c.yaml:5:9",
    ]


def test_a_band_that_a_sensor_lacks_names_scenes_and_formula_character():
    sheet = "scene,sensor,path\n" + "".join(f"L{n},landsat8_l2,l1_{{band}}.tif\n" for n in range(5))
    (line,) = mistakes("products:\n  ndre: (nir - rededge1) / (nir + rededge1)\nsheet: s.csv\n", sheet)
    assert line.startswith(
        "c.yaml:2:16: key 'products.ndre': sensor 'landsat8_l2' of scene 'L0', 'L1', 'L2' and 2 more has no band "
        "'rededge1'"
    )


def test_each_sensor_of_the_sheet_must_have_the_bands():
    Path("s1_B05.tif").touch()
    (line,) = mistakes(CONFIG.replace("nir - red", "nir - rededge1"))
    assert "sensor 'landsat8_l2' of scene 'L1' has no band 'rededge1'" in line


def test_a_file_name_of_a_band_is_no_band():
    (line,) = mistakes("products: {r: {formula: B04 * 2}}\nsheet: s.csv\n", SHEET.rsplit("L1", 1)[0])
    assert line.startswith("c.yaml:1:25: key 'products.r.formula': ")
    assert line.endswith("has no band 'B04' - it is called 'red' there")


@pytest.mark.parametrize(
    ("band", "advice"),
    [
        ("NIR", " - did you mean 'nir'?"),
        ("swir", " - did you mean 'swir16' or 'swir22'?"),
        (
            "bluish",
            "; known are blue, coastal, green, lwir11, nir, qa_aerosol, qa_pixel, qa_radsat, red, swir16, swir22",
        ),
    ],
)
def test_a_band_that_a_sensor_lacks_names_the_bands_that_may_be_meant(band, advice):
    (line,) = mistakes(f"products: {{r: {band} * 2}}\nsheet: s.csv\n", LANDSAT)
    assert line.endswith(f"has no band '{band}'{advice}")


def test_masks_must_be_bands_of_codes_that_some_sensor_has():
    assert "no sensor has a band 'slc' - did you mean 'scl'?" in mistakes(CONFIG + "masks: {slc: {bits: [1]}}\n")[0]
    assert "band 'red' holds measurements" in mistakes(CONFIG + "masks: {red: {classes: [1]}}\n")[0]
    assert campaign(CONFIG + "masks: {qa_aerosol: {bits: [1]}}\n", SHEET.rsplit("L1", 1)[0])


def test_a_sheet_that_is_not_there_is_placed_in_the_config():
    (line,) = mistakes(CONFIG, None)
    assert line.startswith("c.yaml:2:8: key 'sheet': the sample sheet s.csv is not found (seen from ")
    (line,) = mistakes(CONFIG.replace("s.csv", "~/s.csv"), None)
    assert line.endswith("; ~ is not expanded, write it out")


def test_a_gpu_is_refused_with_all_other_mistakes():
    lines = mistakes(CONFIG + "compute: {device: gpu}\n", SHEET + "S3,nobody,x.tif\n")
    assert lines[0].startswith("c.yaml:4:19: key 'compute.device': this version of cogmill has no GPU kernels yet")
    assert lines[1].startswith("s.csv:4:2: ")


def test_the_shipped_example_says_what_is_missing(monkeypatch):
    shipped.skip_if_changed("config/config.yaml", "config/scenes.csv")
    monkeypatch.chdir(ROOT)
    text = Path("config/config.yaml").read_text(encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        Campaign.from_config(yaml.safe_load(text), [("config/config.yaml", text)])
    lines = str(caught.value).splitlines()[1:]
    assert [line.split(": band")[0] for line in lines] == [f"config/scenes.csv:{n}:3: column 'path'" for n in (2, 3)]
    assert all("not found" in line for line in lines)


def test_the_controller_needs_nothing_but_yaml():
    """Snakemake imports these modules in an environment without NumPy, Numba or rasterio."""
    code = (
        "import sys\n"
        "for name in ('numpy', 'numba', 'rasterio', 'pyproj', 'zstandard', 'xxhash'): sys.modules[name] = None\n"
        "import cogmill.campaign, cogmill.describe, cogmill.ledger\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("size", [1, 2, 3, 5, 10, 25, 100, 20_000])
def test_every_scene_is_in_one_batch(size):
    ids = [f"S{n}" for n in range(10_000)]
    batches = cut_batches(ids, size)
    assert [scene for batch in batches.values() for scene in batch] == ids
    assert all(first == batch[0] and len(batch) <= LONGEST * size for first, batch in batches.items())
    if size <= 100:
        assert len(ids) / len(batches) == pytest.approx(size, rel=0.1)


@pytest.mark.parametrize("size", [1, 2, 3, 5, 10, 25, 100])
def test_an_inserted_line_changes_few_batches(size):
    ids = [f"scene_{n:05d}" for n in range(10_000)]
    before = {tuple(batch) for batch in cut_batches(ids, size).values()}
    chance = random.Random(size)
    for number in range(20):
        place = chance.choice([0, 1, len(ids) - 1, len(ids), chance.randrange(len(ids))])
        after = cut_batches([*ids[:place], f"new_{number}", *ids[place:]], size)
        assert len({tuple(batch) for batch in after.values()} - before) <= 4
        removed = cut_batches([*ids[:place], *ids[place + 1 :]], size)
        assert len({tuple(batch) for batch in removed.values()} - before) <= 4


def test_batches_of_few_scenes():
    assert cut_batches([], 25) == {}
    assert cut_batches(["a"], 25) == {"a": ["a"]}
    assert cut_batches(["a", "b", "c"], 1) == {"a": ["a"], "b": ["b"], "c": ["c"]}

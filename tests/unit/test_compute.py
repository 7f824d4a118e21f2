"""`compute`: pixels, resume, masks, memory ladder."""

import os
import shutil
import struct

import numpy as np
import pytest
import rasterio
from made import NDVI, ORIGIN, prepare, red_nir, write_raster
from rasterio.rpc import RPC
from rasterio.transform import Affine

from cogmill import engine, scenemaker
from cogmill.cog.validate import validate_cog
from cogmill.errors import RetryableError, SceneError
from cogmill.ledger import read_json, read_ledger, write_json
from cogmill.supervisor import compute_batch

RUN = {"window": "auto"}


def row(path, scene="S1", **more) -> dict:
    return {"scene": scene, "sensor": "rednir", "path": path} | more


@pytest.fixture
def made(tmp_path):
    red, nir = red_nir()
    red[3, 5] = nir[3, 5] = 0
    return prepare(tmp_path, [row(write_raster(tmp_path / "S1.tif", [red, nir], nodata=0))])


def product(made, scene="S1", name="ndvi"):
    return made.results / "products" / scene / f"{name}.tif"


def read(path):
    with rasterio.open(path) as file:
        return file.read(1)


def test_ndvi_is_the_float64_formula_rounded_once(made, tmp_path):
    lines = compute_batch(**made.batch())
    with rasterio.open(tmp_path / "S1.tif") as file:
        red, nir = file.read().astype("f8")
        invalid = (file.read_masks() == 0).any(axis=0)
    with np.errstate(invalid="ignore"):
        wanted = ((nir - red) / (nir + red)).astype("f4")
    wanted[invalid] = np.nan
    np.testing.assert_array_equal(read(product(made)), wanted)
    assert validate_cog(product(made)) == []
    stats = lines[0]["products"]["ndvi"]["stats"]
    assert stats["invalid"] == 1
    assert stats["mean"] == pytest.approx(np.nanmean(wanted, dtype="f8"))
    assert read_ledger(made.batch()["ledger"]) == lines


def test_second_run_touches_nothing(made):
    compute_batch(**made.batch())
    files = [product(made), made.path("products", "S1")]
    before = [path.stat().st_mtime_ns for path in files]
    compute_batch(**made.batch())
    assert [path.stat().st_mtime_ns for path in files] == before


def test_a_new_formula_sets_the_old_product_aside(made):
    compute_batch(**made.batch())
    old = product(made).read_bytes()
    changed = made.batch()
    changed["params"]["products"]["ndvi"]["formula"] = "nir - red"
    compute_batch(**changed)
    assert product(made).with_name("ndvi.stale.tif").read_bytes() == old
    assert np.nanmax(np.abs(read(product(made)))) > 1


def test_old_pixels_put_in_place_are_found(made, tmp_path):
    compute_batch(**made.batch())
    right = product(made).read_bytes()
    other = made.batch()
    other["params"]["products"]["ndvi"]["formula"] = "(red - nir) / (nir + red)"
    compute_batch(**other)
    wrong = product(made).read_bytes()
    compute_batch(**made.batch())
    assert product(made).read_bytes() == right
    product(made).write_bytes(wrong)
    compute_batch(**made.batch())
    assert product(made).read_bytes() == right


def test_a_copied_campaign_is_not_redone(made):
    compute_batch(**made.batch())
    product(made).touch()
    inode = product(made).stat().st_ino
    compute_batch(**made.batch())
    assert product(made).stat().st_ino == inode
    assert len(read_json(made.path("products", "S1"))["attempts"]) == 1


def test_unreadable_record_is_made_anew(made):
    compute_batch(**made.batch())
    made.path("products", "S1").write_text("{half")
    assert compute_batch(**made.batch())[0]["state"] == "done"
    assert read_json(made.path("products", "S1"))["products"]["ndvi"]["size"] == product(made).stat().st_size


@pytest.mark.parametrize("run", [{"window": 1}, {"window": 2, "window_mb": 1}, {"window_mb": 1}, {"spool_mb": 1}])
def test_same_file_for_any_window(made, run):
    compute_batch(**made.batch())
    whole = product(made).read_bytes()
    product(made).unlink()
    compute_batch(**made.batch(**run))
    assert product(made).read_bytes() == whole


def test_out_of_memory_halves_the_window_and_keeps_the_pixels(made, monkeypatch):
    compute_batch(**made.batch())
    whole = product(made).read_bytes()
    product(made).unlink()
    passes = scenemaker.SceneMaker._pass

    def small_only(self, specs, keys, tile_rows, tile_cols):
        if tile_rows * tile_cols > 1:
            raise MemoryError
        yield from passes(self, specs, keys, tile_rows, tile_cols)

    monkeypatch.setattr(scenemaker.SceneMaker, "_pass", small_only)
    compute_batch(**made.batch())
    assert product(made).read_bytes() == whole
    attempt = read_json(made.path("products", "S1"))["attempts"][-1]
    assert attempt["window"] == [[2, 2], [1, 2], [1, 1]]
    assert attempt["products"] == ["ndvi"]
    assert attempt["bytes"]["written"] == len(whole)


def test_out_of_memory_below_one_tile_fails_the_scene(made, monkeypatch):
    def never(self, specs, keys, tile_rows, tile_cols):
        raise MemoryError
        yield

    monkeypatch.setattr(scenemaker.SceneMaker, "_pass", never)
    line = compute_batch(**made.batch(max_attempts=1))[0]
    assert (line["state"], line["reason"], line["retryable"]) == ("failed", "out_of_memory", True)


def test_disk_full_is_retried_then_recorded(made, monkeypatch):
    def full(self, specs, keys, tile_rows, tile_cols):
        raise OSError(28, "No space left on device")
        yield

    monkeypatch.setattr(scenemaker.SceneMaker, "_pass", full)
    ledger = made.batch()["ledger"]
    for _ in range(2):
        with pytest.raises(RetryableError, match="S1"):
            compute_batch(**made.batch(max_attempts=3))
        assert not ledger.exists()
    line = compute_batch(**made.batch(max_attempts=3))[0]
    assert (line["state"], line["reason"], line["retryable"]) == ("failed", "io_error", True)
    assert "No space left" in line["message"]
    monkeypatch.undo()
    assert compute_batch(**made.batch())[0]["state"] == "done"


def test_damaged_store_tile_fails_its_scene_only(tmp_path):
    paths = [write_raster(tmp_path / f"S{n}.tif", red_nir(seed=n)) for n in (1, 2)]
    made = prepare(tmp_path, [row(path, path.stem) for path in paths])
    band = made.results / "cogs" / "S1" / "red.tif"
    data = bytearray(band.read_bytes())
    data[len(data) // 2] ^= 0xFF
    band.write_bytes(data)
    states = {line["scene"]: line for line in compute_batch(**made.batch())}
    assert states["S1"]["reason"] == "damaged_tile"
    assert "red.tif" in states["S1"]["message"]
    assert "S1" in states["S1"]["message"]
    assert states["S2"]["state"] == "done"
    assert not list((made.results / "products" / "S1").glob("*.tif"))
    assert not list((made.results / "products" / "S1").glob(".*.tmp"))


def test_missing_store_band_says_what_to_do(made):
    (made.results / "cogs" / "S1" / "nir.tif").unlink()
    line = compute_batch(**made.batch())[0]
    assert line["reason"] == "cog_missing"
    assert "cogmill forget S1" in line["message"]


def test_strict_raises_the_reason(made):
    (made.results / "cogs" / "S1" / "nir.tif").unlink()
    with pytest.raises(SceneError, match=r"nir\.tif") as caught:
        compute_batch(**made.batch() | {"strict": True, "ledger": None})
    assert caught.value.reason == "cog_missing"


def test_all_products_of_a_scene(tmp_path):
    red, nir = red_nir()
    products = {
        "ndvi": {"formula": NDVI, "dtype": "int16", "scale": 1e-4},
        "sum": "nir + red",
        "red8": {"formula": "red / 20", "dtype": "uint8", "scale": 1},
    }
    made = prepare(tmp_path, [row(write_raster(tmp_path / "S1.tif", [red, nir]))], products)
    compute_batch(**made.batch())
    with rasterio.open(product(made)) as file:
        assert (file.dtypes[0], file.nodata, file.scales[0]) == ("int16", -32768, 1e-4)
        exact = (nir.astype("f8") - red) / (nir.astype("f8") + red)
        assert np.abs(file.read(1) * 1e-4 - exact).max() <= 0.5e-4 + 1e-7
    np.testing.assert_array_equal(read(product(made, name="sum")), red.astype("f4") + nir)
    assert read(product(made, name="red8")).max() == 250


MASK_SENSOR = """\
title: Red, NIR and classes at half the resolution
bands:
  red: {names: [B04]}
  nir: {names: [B08]}
  scl: {names: [SCL], kind: classes}
"""


def test_class_mask_on_a_coarser_grid_is_sampled_by_nearest(tmp_path):
    red, nir = red_nir((601, 701))
    classes = np.random.default_rng(1).integers(0, 12, (301, 351), dtype=np.uint8)
    coarse = ORIGIN @ Affine.scale(2) if hasattr(Affine, "__matmul__") else ORIGIN * Affine.scale(2)
    for name, band, transform in (("B04", red, ORIGIN), ("B08", nir, ORIGIN), ("SCL", classes, coarse)):
        write_raster(tmp_path / f"x_{name}.tif", [band], transform=transform)
    (tmp_path / "sensors").mkdir()
    (tmp_path / "sensors" / "masked.yaml").write_text(MASK_SENSOR)
    rows = [row(tmp_path / "x_{band}.tif", sensor="masked")]
    made = prepare(tmp_path, rows, masks={"scl": {"classes": [3, 8, 9]}})
    compute_batch(**made.batch())
    cloudy = np.isin(classes, [3, 8, 9]).repeat(2, 0).repeat(2, 1)[:601, :701]
    np.testing.assert_array_equal(np.isnan(read(product(made))), cloudy)


def test_failed_to_cog_ends_as_failed_product_record(tmp_path):
    (tmp_path / "S1.tif").write_bytes(b"not a raster")
    good = write_raster(tmp_path / "S2.tif", red_nir())
    made = prepare(tmp_path, [row(tmp_path / "S1.tif", "S1"), row(good, "S2")])
    lines = compute_batch(**made.batch())
    assert [line["state"] for line in lines] == ["failed", "done"]
    assert "S1.tif" in lines[0]["message"]
    assert lines[0]["reason"] == read_json(made.path("cogs", "S1"))["reason"]


def test_attempt_says_what_was_done(made):
    compute_batch(**made.batch())
    attempt = read_json(made.path("products", "S1"))["attempts"][-1]
    assert attempt["outcome"] == "done"
    assert attempt["products"] == ["ndvi"]
    assert attempt["bytes"]["pixels_in"] == 2 * 700 * 900 * 2
    assert attempt["bytes"]["written"] == product(made).stat().st_size
    assert attempt["tiles"] == 5  # 2 x 2 and one overview
    assert attempt["seconds"]["total"] >= attempt["seconds"]["compute"] > 0
    assert attempt["threads"] == 2


def test_moved_results_folder_still_works(made, tmp_path):
    compute_batch(**made.batch())
    shutil.copytree(made.results, tmp_path / "elsewhere")
    made.results = tmp_path / "elsewhere"
    assert compute_batch(**made.batch())[0]["state"] == "done"
    assert len(read_json(made.path("products", "S1"))["attempts"]) == 1


def test_gpu_is_refused_with_words(made):
    with pytest.raises(Exception, match=r"compute\.device"):
        compute_batch(**made.batch(device="gpu"))


def test_products_of_a_scene_that_now_fails_are_set_aside(made, tmp_path):
    compute_batch(**made.batch())
    old = product(made).read_bytes()
    record = made.path("cogs", "S1")
    write_json(record, read_json(record) | {"state": "failed", "reason": "unreadable", "message": "cut off"})
    line = compute_batch(**made.batch())[0]
    assert (line["state"], line["products"]) == ("failed", {})
    assert not product(made).exists()
    assert product(made).with_name("ndvi.stale.tif").read_bytes() == old


def test_rational_polynomials_reach_the_product(tmp_path):
    rpcs = RPC(
        height_off=100.0, height_scale=500.0, lat_off=45.0, lat_scale=0.1, long_off=9.0, long_scale=0.1,
        line_off=30.0, line_scale=30.0, samp_off=35.0, samp_scale=35.0,
        line_num_coeff=[0.0, 1.0, *[0.0] * 18], line_den_coeff=[1.0, *[0.0] * 19],
        samp_num_coeff=[0.0, 0.0, 1.0, *[0.0] * 17], samp_den_coeff=[1.0, *[0.0] * 19],
    )  # fmt: skip
    path = write_raster(tmp_path / "S1.tif", red_nir((60, 70)), crs=None, transform=None, rpcs=rpcs)
    made = prepare(tmp_path, [row(path)])
    compute_batch(**made.batch())
    with rasterio.open(product(made)) as file, rasterio.open(path) as source:
        assert file.rpcs == source.rpcs


def tampered(made, change):
    """Change red.tif of the store as `change(file bytes)` says, its size and time kept; the scene's ledger line."""
    band = made.results / "cogs" / "S1" / "red.tif"
    times = band.stat().st_atime_ns, band.stat().st_mtime_ns
    data = bytearray(band.read_bytes())
    change(data)
    band.write_bytes(data)
    os.utime(band, ns=times)
    return compute_batch(**made.batch())[0]


def entry_of(data: bytearray, tag: int) -> int:
    """Offset of the value of `tag` in the first directory of a little-endian classic TIFF."""
    (directory,) = struct.unpack_from("<I", data, 4)
    (count,) = struct.unpack_from("<H", data, directory)
    entries = [directory + 2 + 12 * k for k in range(count)]
    return next(entry for entry in entries if struct.unpack_from("<H", data, entry)[0] == tag) + 8


def empty_first_tile(data):
    (counts,) = struct.unpack_from("<I", data, entry_of(data, 325))
    struct.pack_into("<I", data, counts, 0)


def other_predictor(data):
    struct.pack_into("<H", data, entry_of(data, 317), 1)


def signed(data):
    struct.pack_into("<H", data, entry_of(data, 339), 2)


@pytest.mark.parametrize("change", [empty_first_tile, other_predictor, signed])
def test_a_store_header_that_was_changed_is_noticed(made, change):
    line = tampered(made, change)
    assert line["state"] == "failed"
    assert line["reason"] in ("changed", "damaged_tile", "damaged_index")
    assert "red.tif" in line["message"]


def test_a_store_band_that_lost_its_mask_is_noticed(tmp_path):
    mask = np.full((60, 70), 255, dtype=np.uint8)
    mask[:30] = 0
    made = prepare(tmp_path, [row(write_raster(tmp_path / "S1.tif", red_nir((60, 70)), mask=mask))])

    def drop_mask(data):
        (directory,) = struct.unpack_from("<I", data, 4)
        (count,) = struct.unpack_from("<H", data, directory)
        struct.pack_into("<I", data, directory + 2 + 12 * count, 0)

    assert "mask" in tampered(made, drop_mask)["message"]
    assert not product(made).exists()


@pytest.mark.parametrize("kind", ["cogs", "grids"])
@pytest.mark.parametrize("text", ["", "{half", "[]", "null", "{}", '{"state": "done"}', "\0\0", "[" * 100_000, "é"])
def test_a_damaged_record_fails_its_scene_and_says_which_file(made, kind, text):
    made.path(kind, "S1").write_text(text, encoding="latin-1")
    line = compute_batch(**made.batch())[0]
    assert (line["state"], line["reason"]) == ("failed", "record_damaged")
    assert f"{kind}/S1/record.json" in line["message"]
    assert "delete it" in line["message"]


@pytest.mark.parametrize(
    "text", ["[]", "null", "{}", '{"products": {"ndvi": 3}}', '{"attempts": "x"}', "[" * 100_000, "é"]
)
def test_a_damaged_products_record_is_made_anew(made, text):
    compute_batch(**made.batch())
    made.path("products", "S1").write_text(text, encoding="latin-1")
    assert compute_batch(**made.batch())[0]["state"] == "done"


def test_a_record_that_a_full_disk_kept_from_being_written_is_no_death(made, monkeypatch):
    write, calls = engine.write_json, []

    def full_after_the_first(path, doc):
        calls.append(path)
        if len(calls) > 1:
            raise OSError(28, "No space left on device")
        write(path, doc)

    for _ in range(3):  # more often than deaths are tolerated
        with monkeypatch.context() as patch:
            calls.clear()
            patch.setattr(engine, "write_json", full_after_the_first)
            with pytest.raises(RetryableError):
                compute_batch(**made.batch())
    assert compute_batch(**made.batch())[0]["state"] == "done"


@pytest.mark.parametrize("name", ["ndvi.tif", ".x.tmp", "ndvi.stale.tif"])
def test_links_and_folders_in_the_way_of_a_product(made, name):
    folder = made.results / "products" / "S1"
    folder.mkdir(parents=True)
    if name == "ndvi.tif":
        (folder / name).symlink_to(name)
    elif name == ".x.tmp":
        (folder / name).mkdir()
    else:
        (folder / name).write_bytes(b"an older one")
    assert compute_batch(**made.batch())[0]["state"] == "done"
    assert validate_cog(product(made)) == []


def test_statistics_of_a_negative_scale_are_the_right_way_round(tmp_path):
    products = {"red": {"formula": "red", "dtype": "int16", "scale": -1.0}}
    made = prepare(tmp_path, [row(write_raster(tmp_path / "S1.tif", red_nir((60, 70))))], products)
    stats = compute_batch(**made.batch())[0]["products"]["red"]["stats"]
    assert stats["min"] < stats["mean"] < stats["max"]

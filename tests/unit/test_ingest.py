"""Storing a scene's bands: what is found, kept, refused, and what happens after a fault or a kill."""

import base64
import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
import rasterio
import tifffile
from rasterio.control import GroundControlPoint
from rasterio.enums import ColorInterp
from rasterio.transform import Affine

from cogmill import ingest, sources
from cogmill.cog.reader import CogReader
from cogmill.errors import RetryableError
from cogmill.grids import Window
from cogmill.ingest import to_cog
from cogmill.sources import local_file

TRANSFORM = Affine(10, 0, 500000, 0, -10, 5000000)
PROFILE = {"driver": "GTiff", "crs": "EPSG:32631", "transform": TRANSFORM}


def pixels(dtype="uint16", shape=(600, 700), seed=0):
    random = np.random.default_rng(seed)
    return random.integers(1, 120, shape).astype(dtype)


def write(path: Path, bands, mask=None, **options) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    rows, cols = bands[0].shape
    options = PROFILE | options
    with (
        rasterio.Env(GDAL_TIFF_INTERNAL_MASK=True),
        rasterio.open(path, "w", width=cols, height=rows, count=len(bands), dtype=bands[0].dtype, **options) as file,
    ):
        for number, band in enumerate(bands, 1):
            file.write(band, number)
        if mask is not None:
            file.write_mask(mask)
    return path


def write_vrt(path: Path, *bands) -> None:
    """A virtual raster of 600 x 700 pixels; `bands` are (GDAL type, source file)."""
    texts = [
        f'<VRTRasterBand dataType="{kind}" band="{number}"><SimpleSource>'
        f"<SourceFilename>{source}</SourceFilename>"
        "<SourceBand>1</SourceBand></SimpleSource></VRTRasterBand>"
        for number, (kind, source) in enumerate(bands, 1)
    ]
    path.write_text(f'<VRTDataset rasterXSize="700" rasterYSize="600">{"".join(texts)}</VRTDataset>')


def sensor(*roles, **changes) -> dict:
    bands = [
        {"name": r, "names": [], "file": [r], "position": n, "kind": "continuous", "scale": None, "offset": None}
        | changes.get(r, {})
        for n, r in enumerate(roles, 1)
    ]
    return {"name": "testsat", "nodata": changes.get("nodata"), "bands": bands}


@pytest.fixture
def store(tmp_path):
    """Run `to_cog` into tmp_path/cogs/S1."""

    def run(path, roles=("red", "nir"), of=None, bands=None, cog=None, max_attempts=3, **row):
        return to_cog(
            scene="S1",
            row={"scene": "S1", "path": str(path)} | row,
            sensor=of or sensor(*roles),
            bands=list(bands or roles),
            cog={"bands": "needed", "overviews": False, "zstd_level": 1} | (cog or {}),
            record=tmp_path / "cogs" / "S1" / "record.json",
            max_attempts=max_attempts,
        )

    run.folder = tmp_path / "cogs" / "S1"
    return run


def done(record: dict) -> dict:
    assert record["state"] == "done", record["message"]
    return record["bands"]


def failed(record: dict, reason: str, *words: str) -> str:
    assert (record["state"], record["reason"]) == ("failed", reason), record
    for word in ("S1", *words):
        assert word in record["message"], record["message"]
    return record["message"]


def read_back(store, band: dict):
    """Pixels and validity of a stored band by our own reader, checksums verified."""
    checks = [
        None if band[key] is None else np.frombuffer(base64.b64decode(band[key]), "<u8")
        for key in ("tile_checksums", "mask_checksums")
    ]
    with CogReader(store.folder / band["path"], band["band"], *checks) as reader:
        return reader.read(Window(0, 0, *band["shape"]))


# --- what comes through ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "dtype", ["uint8", "int8", "uint16", "int16", "uint32", "int32", "float32", "float64", "int64", "uint64"]
)
def test_every_dtype_comes_through_unchanged(tmp_path, store, dtype):
    source = [pixels(dtype, seed=1), pixels(dtype, seed=2)]
    bands = done(store(write(tmp_path / "in.tif", source)))
    for band, original in zip(bands.values(), source, strict=True):
        assert band["dtype"] == dtype and band["written"] and band["shape"] == [600, 700]
        assert np.array_equal(read_back(store, band)[0], original)
        with rasterio.open(store.folder / band["path"]) as file:
            assert np.array_equal(file.read(1), original)
            assert file.block_shapes == [(512, 512)] and file.compression.value == "ZSTD"
            assert tuple(file.transform)[:6] == tuple(band["transform"]) == tuple(TRANSFORM)[:6]


def test_windows_do_not_show(tmp_path, store, monkeypatch):
    source = [pixels(shape=(1300, 1100), seed=1), pixels(shape=(1300, 1100), seed=2)]
    path = write(tmp_path / "in.tif", source, mask=(pixels(shape=(1300, 1100), seed=3) > 60) * np.uint8(255))
    whole = done(store(path))
    monkeypatch.setattr(ingest, "WINDOW_BYTES", 1)
    shutil.rmtree(store.folder)
    tiled = done(store(path))
    assert [b["tile_checksums"] for b in whole.values()] == [b["tile_checksums"] for b in tiled.values()]
    assert [b["mask_checksums"] for b in whole.values()] == [b["mask_checksums"] for b in tiled.values()]


def test_windows_are_as_high_as_the_blocks_where_that_fits(tmp_path):
    class File:
        shape, block = (4000, 1000), (1024, 1024)

    class Band:
        dtype, masked = "uint16", False

    assert [w.rows for w in ingest.reading_windows(File, [Band])] == [4000]
    File.shape = (100_000, 10_980)
    heights = [w.rows for w in ingest.reading_windows(File, [Band])]
    assert heights[0] % 1024 == 0 and heights[0] * 10_980 * 2 <= ingest.WINDOW_BYTES
    File.shape = (600, 200_000)
    narrow = list(ingest.reading_windows(File, [Band]))
    assert {w.rows for w in narrow} == {512, 88} and narrow[0].cols % 512 == 0


def test_internal_mask_goes_along(tmp_path, store):
    mask = (pixels(seed=9) > 40) * np.uint8(255)
    bands = done(store(write(tmp_path / "in.tif", [pixels(), pixels(seed=1)], mask=mask)))
    for band in bands.values():
        assert band["mask"] and band["mask_checksums"]
        assert np.array_equal(read_back(store, band)[1] > 0, mask > 0)
        with rasterio.open(store.folder / band["path"]) as file:
            assert np.array_equal(file.read_masks(1), mask)


def test_external_mask_goes_along(tmp_path, store):
    path = write(
        tmp_path / "in.tif", [pixels(), pixels(seed=1)], tiled=True, blockxsize=512, blockysize=512, compress="zstd"
    )
    mask = (pixels(seed=9) > 40) * np.uint8(255)
    with rasterio.Env(GDAL_TIFF_INTERNAL_MASK=False), rasterio.open(path, "r+") as file:
        file.write_mask(mask)
    assert Path(f"{path}.msk").exists()
    assert np.array_equal(read_back(store, done(store(path))["red"])[1] > 0, mask > 0)


def test_alpha_that_gdal_applies_becomes_a_mask(tmp_path, store):
    alpha = np.where(pixels(seed=9, dtype="uint8") > 40, 128, 0).astype("uint8")
    path = write(
        tmp_path / "in.tif", [pixels("uint8", seed=n) for n in range(3)] + [alpha], photometric="RGB", alpha="YES"
    )
    bands = done(store(path, ("red", "green", "blue")))
    assert list(bands) == ["red", "green", "blue"]
    assert np.array_equal(read_back(store, bands["red"])[1] > 0, alpha > 0)


def test_alpha_that_gdal_does_not_apply_is_stored_as_a_mask_of_the_scene(tmp_path, store):
    alpha = np.where(pixels(seed=9, dtype="uint8") > 40, 255, 0).astype("uint8")
    path = write(tmp_path / "in.tif", [pixels("uint8", seed=n) for n in range(4)] + [alpha], photometric="RGB")
    with rasterio.open(path, "r+") as file:
        file.colorinterp = [*file.colorinterp[:3], ColorInterp.undefined, ColorInterp.alpha]
    bands = done(store(path, ("red", "green", "blue", "nir"), bands=["red", "nir"]))
    assert list(bands) == ["red", "nir", "alpha"] and not bands["red"]["mask"]
    assert bands["alpha"]["kind"] == "mask" and bands["alpha"]["source"]["band"] == 5
    assert np.array_equal(read_back(store, bands["alpha"])[0], alpha)


def test_a_band_marked_as_alpha_is_not_taken_for_a_measurement(tmp_path, store):
    path = write(tmp_path / "in.tif", [pixels("uint8", seed=n) for n in range(4)], photometric="RGB", alpha="YES")
    failed(store(path, ("red", "green", "blue", "nir")), "alpha_as_band", "in.tif", "nir", "colorinterp_4")


def test_mask_column_of_the_sheet(tmp_path, store):
    source, mask = write(tmp_path / "in.tif", [pixels()]), write(tmp_path / "clear.tif", [pixels("uint8") % 2])
    bands = done(store(source, ("red",), mask=str(mask)))
    assert bands["mask"]["kind"] == "mask" and np.array_equal(read_back(store, bands["mask"])[0], pixels("uint8") % 2)
    failed(store(source, ("red",), mask=str(tmp_path / "gone.tif")), "not_found", "gone.tif")


def test_nodata_of_each_band_stays_its_own(tmp_path, store):
    write(tmp_path / "red.tif", [pixels()], nodata=0)
    write(tmp_path / "nir.tif", [pixels()], nodata=65535)
    bands = done(store(tmp_path / "{band}.tif"))
    assert (bands["red"]["nodata"], bands["nir"]["nodata"]) == (0, 65535)
    with rasterio.open(store.folder / "nir.tif") as file:
        assert file.nodata == 65535


def test_nodata_that_no_pixel_can_hold_is_ignored(tmp_path, store):
    tifffile.imwrite(tmp_path / "in.tif", pixels("uint8"), extratags=[(42113, "s", 0, "-9999", True)])
    band = done(store(tmp_path / "in.tif", ("red",)))["red"]
    assert band["nodata"] is None and not band["mask"]


def test_nodata_of_sheet_goes_over_file_goes_over_sensor(tmp_path, store):
    tagged, plain = write(tmp_path / "a.tif", [pixels()], nodata=5), write(tmp_path / "b.tif", [pixels()])
    of = sensor("red", nodata=7)
    assert done(store(tagged, ("red",), of, nodata=9))["red"]["nodata"] == 9
    assert done(store(tagged, ("red",), of))["red"]["nodata"] == 5
    assert done(store(plain, ("red",), of))["red"]["nodata"] == 7
    classes = sensor("red", nodata=7, red={"kind": "classes"})
    assert done(store(plain, ("red",), classes, nodata=9))["red"]["nodata"] is None
    failed(store(plain, ("red",), of, nodata=-9999), "nodata_range", "-9999", "uint16", "'nodata'")


def test_a_nodata_of_a_mask_means_nothing(tmp_path, store):
    source = write(tmp_path / "in.tif", [pixels()])
    for nodata in (255, 0):
        mask = write(tmp_path / f"m{nodata}.tif", [pixels("uint8") % 2 * np.uint8(255)], nodata=nodata)
        band = done(store(source, ("red",), mask=str(mask)))["mask"]
        assert band["nodata"] is None and band["nodata_from"] == "nobody" and not band["mask"]
        with rasterio.open(store.folder / "mask.tif") as file:
            assert file.nodata is None


def test_scale_unit_description_and_tags_come_through_but_not_those_of_the_old_file(tmp_path, store):
    path = write(tmp_path / "in.tif", [pixels(), pixels(seed=1)], interleave="pixel")
    with rasterio.open(path, "r+") as file:
        file.scales, file.offsets, file.units, file.descriptions = (1e-4, 1.0), (-0.1, 0.0), ("1", "K"), ("rød", "b")
        file.update_tags(PLATFORM="Sentinel-2A", NODATA_VALUES="0 0", Band_1="x", STATISTICS_MEAN="3")
        file.update_tags(1, wavelength="664.6", STATISTICS_MAXIMUM="12")
    bands = done(store(path))
    assert bands["red"]["tags"] == {"scale": 1e-4, "offset": -0.1, "unit": "1", "description": "rød"}
    with rasterio.open(store.folder / "red.tif") as file:
        assert (file.scales, file.offsets, file.units, file.descriptions) == ((1e-4,), (-0.1,), ("1",), ("rød",))
        assert file.tags()["PLATFORM"] == "Sentinel-2A" and file.tags(1)["wavelength"] == "664.6"
        assert not {"NODATA_VALUES", "Band_1", "STATISTICS_MEAN"} & set(file.tags())
        assert not any(key.startswith("STATISTICS") for key in file.tags(1))
        assert file.tags(ns="IMAGE_STRUCTURE").get("INTERLEAVE", "BAND") == "BAND"
    assert not list(store.folder.glob("*.aux.xml"))


def test_palette_comes_through(tmp_path, store):
    path = write(tmp_path / "in.tif", [pixels("uint8") % 4], photometric="palette")
    with rasterio.open(path, "r+") as file:
        file.write_colormap(1, {n: (n * 60, 10, 20, 255) for n in range(4)})
    done(store(path, ("scl",), sensor("scl", scl={"kind": "classes"})))
    with rasterio.open(store.folder / "scl.tif") as file:
        assert file.colormap(1)[2] == (120, 10, 20, 255)


@pytest.mark.parametrize(
    ("transform", "crs"),
    [
        (Affine(10, 0, 500000, 0, 10, 4000000), "EPSG:32631"),
        (Affine(8.66, 5.0, 500000.0, 5.0, -8.66, 5000000.0), "EPSG:32631"),
        (TRANSFORM, None),
    ],
    ids=["south_up", "rotated", "no_crs"],
)
def test_odd_georeferencing_comes_through(tmp_path, store, transform, crs):
    band = done(store(write(tmp_path / "in.tif", [pixels()], transform=transform, crs=crs), ("red",)))["red"]
    assert band["transform"] == pytest.approx(tuple(transform)[:6]) and (band["crs"] is None) == (crs is None)
    with rasterio.open(store.folder / "red.tif") as file:
        assert file.transform.almost_equals(transform) and file.crs == crs


def test_no_georeferencing_is_null_not_an_identity(tmp_path, store):
    options = {"driver": "GTiff", "width": 700, "height": 600, "count": 1, "dtype": "uint16"}
    with (
        pytest.warns(rasterio.errors.NotGeoreferencedWarning),
        rasterio.open(tmp_path / "in.tif", "w", **options) as file,
    ):
        file.write(pixels(), 1)
    band = done(store(tmp_path / "in.tif", ("red",)))["red"]
    assert band["transform"] is None and band["crs"] is None and band["gcps"] is None


def test_ground_control_points_come_through(tmp_path, store):
    points = [
        GroundControlPoint(r, c, 500000 + 10 * c, 5e6 - 10 * r, 3.0)
        for r, c in ((0, 0), (0, 700), (600, 0), (600, 700))
    ]
    path = write(tmp_path / "in.tif", [pixels()], transform=None, crs=None)
    with rasterio.open(path, "r+") as file:
        file.gcps = (points, rasterio.crs.CRS.from_epsg(32631))
    band = done(store(path, ("red",)))["red"]
    assert band["gcps"][1] == [0.0, 700.0, 507000.0, 5e6, 3.0] and band["transform"] is None
    with rasterio.open(store.folder / "red.tif") as file:
        found, crs = file.gcps
        assert crs == "EPSG:32631" and [(p.row, p.col, p.x, p.y) for p in found] == [
            (p.row, p.col, p.x, p.y) for p in points
        ]


def test_rational_polynomials_come_through(tmp_path, store):
    rpcs = rasterio.rpc.RPC(
        height_off=1.0,
        height_scale=2.0,
        lat_off=45.0,
        lat_scale=0.1,
        line_den_coeff=[1.0] * 20,
        line_num_coeff=[0.5] * 20,
        line_off=300.0,
        line_scale=300.0,
        long_off=3.0,
        long_scale=0.1,
        samp_den_coeff=[1.0] * 20,
        samp_num_coeff=[0.25] * 20,
        samp_off=350.0,
        samp_scale=350.0,
        err_bias=None,
        err_rand=None,
    )
    path = write(tmp_path / "in.tif", [pixels()], transform=None, crs=None)
    with rasterio.open(path, "r+") as file:
        file.rpcs = rpcs
    done(store(path, ("red",)))
    with rasterio.open(store.folder / "red.tif") as file:
        assert file.rpcs.line_num_coeff == rpcs.line_num_coeff and file.rpcs.long_off == 3.0


def test_stale_pyramids_are_not_looked_at(tmp_path, store):
    path = write(tmp_path / "in.tif", [np.full((1100, 1200), 200, "uint8")])
    with rasterio.Env(TIFF_USE_OVR=True), rasterio.open(path, "r+") as file:
        file.build_overviews([2, 4])
    with rasterio.open(path, "r+") as file:
        file.write(np.full((1100, 1200), 50, "uint8"), 1)
    done(store(path, ("red",), cog={"overviews": True}))
    with rasterio.open(store.folder / "red.tif") as file:
        assert file.overviews(1) and (file.read(1, out_shape=(275, 300)) == 50).all()


def test_bands_of_different_dtypes_in_one_file_keep_them(tmp_path, store):
    floats, bytes_ = write(tmp_path / "a.tif", [pixels("float32")]), write(tmp_path / "b.tif", [pixels("uint8")])
    write_vrt(tmp_path / "in.vrt", ("Float32", floats), ("Byte", bytes_))
    bands = done(store(tmp_path / "in.vrt"))
    assert (bands["red"]["dtype"], bands["nir"]["dtype"]) == ("float32", "uint8")


# --- which band -----------------------------------------------------------------------------------------------------


def described(path, *texts):
    write(path, [pixels(seed=n) for n in range(len(texts))])
    with rasterio.open(path, "r+") as file:
        file.descriptions = texts
    return path


NAMED = sensor("red", "nir", "nir08", red={"names": ["B04", "B4"]}, nir={"names": ["B08"]}, nir08={"names": ["B8A"]})


def test_bands_are_found_by_description_before_position(tmp_path, store):
    path = described(tmp_path / "in.tif", "B8A", "b08 ", "B4, central wavelength 665 nm")
    bands = done(store(path, ("red", "nir"), NAMED))
    assert {role: band["source"]["band"] for role, band in bands.items()} == {"red": 3, "nir": 2}


def test_a_band_missing_among_described_ones_is_not_taken_by_position(tmp_path, store):
    path = described(tmp_path / "in.tif", "B04", "B8A")
    failed(store(path, ("red", "nir"), NAMED), "band_missing", "'nir'", "B04", "B8A", "in.tif")


def test_two_bands_of_one_description(tmp_path, store):
    failed(store(described(tmp_path / "in.tif", "B04", "B4"), ("red",), NAMED), "band_ambiguous", "1 and 2")


def test_positions_that_the_files_designations_may_contradict_are_noted(tmp_path, store):
    path = described(tmp_path / "in.tif", "B02", "B03")
    (note,) = store(path, ("red", "nir"), sensor("red", "nir"))["notes"]
    for word in ("S1", "in.tif", "B02", "red = band 1", "testsat", "column 'sensor'"):
        assert word in note
    assert store(described(tmp_path / "b.tif", "gray", "second"), ("red", "nir"))["notes"] == []


@pytest.mark.parametrize("text", ["", "[]", "null", "{}", '{"bands": {"red": {"key": 3}}}', "[" * 100_000, "é"])
@pytest.mark.parametrize("name", ["state.json", ".started"])
def test_damaged_notes_of_earlier_attempts_mean_a_fresh_start(tmp_path, store, name, text):
    path = write(tmp_path / "in.tif", [pixels()])
    wanted = done(store(path, ("red",)))
    (store.folder / name).write_text(text, encoding="latin-1")
    assert done(store(path, ("red",)))["red"]["pixel_digest"] == wanted["red"]["pixel_digest"]


def test_a_pipe_is_not_waited_for(tmp_path, store):
    os.mkfifo(tmp_path / "in.tif")
    failed(store(tmp_path / "in.tif"), "unreadable", "in.tif", "neither a file nor a folder")


def test_descriptions_that_only_resemble_names_mean_nothing(tmp_path, store):
    bands = done(store(described(tmp_path / "in.tif", "red edge", "nir wide"), ("red", "nir"), NAMED))
    assert bands["nir"]["source"]["band"] == 2


def test_too_few_bands(tmp_path, store):
    failed(store(write(tmp_path / "in.tif", [pixels()])), "band_missing", "no band 2", "'nir'", "1 band", "in.tif")


def test_all_bands_are_stored_as_far_as_they_are_there(tmp_path, store):
    path = write(tmp_path / "in.tif", [pixels()])
    assert list(done(store(path, cog={"bands": "all"}))) == ["red"]
    write(tmp_path / "per" / "nir.tif", [pixels()])
    assert list(done(store(tmp_path / "per" / "{band}.tif", cog={"bands": "all"}))) == ["nir"]
    failed(store(tmp_path / "none" / "{band}.tif", cog={"bands": "all"}), "band_missing")


def test_the_record_says_which_bands_were_left_out_and_why(tmp_path, store):
    path = write(tmp_path / "in.tif", [pixels()])
    assert "has no band 2" in store(path, cog={"bands": "all"})["left_out"]["nir"]
    assert store(path, ("red",))["left_out"] == {}


def test_one_file_a_band_by_its_tokens(tmp_path, store):
    of = sensor("nir", "nir08", nir={"file": ["B08", "B8"]}, nir08={"file": ["B8A"]})
    for n, token in enumerate(("B08", "B8A")):
        write(tmp_path / "[x] {y}" / f"T32 {token}.tif", [pixels(seed=n)])
    pattern = tmp_path / "[x] {y}" / "T32 {band}.tif"
    bands = done(store(pattern, ("nir", "nir08"), of))
    assert np.array_equal(read_back(store, bands["nir08"])[0], pixels(seed=1))
    write(tmp_path / "[x] {y}" / "T32 B8.tif", [pixels()])
    failed(store(pattern, ("nir",), of), "band_ambiguous", "T32 B08.tif", "T32 B8.tif")


def test_no_file_for_a_band(tmp_path, store):
    write(tmp_path / "red.tif", [pixels()])
    failed(store(tmp_path / "{band}.tif"), "not_found", "nir.tif", "'path'")


def test_several_bands_in_a_file_that_should_hold_one(tmp_path, store):
    write(tmp_path / "red.tif", [pixels(), pixels()])
    failed(store(tmp_path / "{band}.tif", ("red",)), "band_ambiguous", "2 bands")


# --- radiometry -----------------------------------------------------------------------------------------------------


def test_the_record_says_who_decided_the_radiometry(tmp_path, store):
    of = sensor("red", "scl", red={"scale": 1e-4, "offset": -0.1}, scl={"kind": "classes"})
    path = write(tmp_path / "in.tif", [pixels(), pixels(seed=1)])
    bands = done(store(path, ("red", "scl"), of))
    assert [bands["red"]["radiometry"][k] for k in ("scale", "offset", "decided_by")] == [1e-4, -0.1, "sensor"]
    assert bands["scl"]["radiometry"]["decided_by"] == "none"
    before = (store.folder / "red.tif").stat()
    bands = done(store(path, ("red", "scl"), of, scale=2.0, offset=1.0))
    assert [bands["red"]["radiometry"][k] for k in ("scale", "offset", "decided_by")] == [2.0, 1.0, "sheet"]
    assert (store.folder / "red.tif").stat().st_mtime_ns == before.st_mtime_ns, "radiometry rewrites no pixel"


def test_conflict_of_tags_and_sensor_is_a_failed_scene(tmp_path, store):
    path = write(tmp_path / "in.tif", [pixels()])
    with rasterio.open(path, "r+") as file:
        file.scales, file.offsets = (1e-4,), (0.0,)
    of = sensor("red", red={"scale": 1e-4, "offset": -0.1})
    failed(store(path, ("red",), of), "radiometry_conflict", "-0.1", "0.0", "'sensor'")
    floats = write(tmp_path / "float.tif", [pixels("float32")])
    failed(store(floats, ("red",), of), "radiometry_unclear", "'scale' and 'offset'")


# --- strange ----------------------------------------------------------------------------------------------------------


def garbled(path: Path, old: bytes, new: bytes) -> Path:
    """Replace bytes of a file by as many others."""
    data = path.read_bytes()
    assert old in data and len(old) == len(new)
    path.write_bytes(data.replace(old, new))
    return path


def test_texts_in_latin_1_are_left_out_and_those_of_the_other_bands_are_not(tmp_path, store, caplog):
    path = described(tmp_path / "in.tif", "B8A", "GROESSE", "B04")
    with rasterio.open(path, "r+") as file:
        file.units = ("K", "UNITTT", "m")
    garbled(garbled(path, b"GROESSE", b"Gr\xf6\xdfe!!"), b"UNITTT", b"UNI\xe9TT")
    bands = done(store(path, ("red", "nir08"), NAMED, bands=["red", "nir08"]))
    assert {role: (band["source"]["band"], band["tags"]["unit"]) for role, band in bands.items()} == {
        "red": (3, "m"),
        "nir08": (1, "K"),
    }
    warnings = [entry.getMessage() for entry in caplog.records if "UTF-8" in entry.getMessage()]
    assert len(warnings) == 2 and all("S1" in text and "in.tif, band 2" in text for text in warnings)
    alone = garbled(described(tmp_path / "one.tif", "GROESSE"), b"GROESSE", b"Gr\xf6\xdfe!!")
    assert done(store(alone, ("red",)))["red"]["tags"]["description"] is None


VRT = """<VRTDataset rasterXSize="700" rasterYSize="600">{}<VRTRasterBand dataType="UInt16" band="1"><SimpleSource>
<SourceFilename relativeToVRT="1">in.tif</SourceFilename></SimpleSource></VRTRasterBand></VRTDataset>"""
POINTS = (
    '<GCPList Projection="EPSG:4326"><GCP Id="a" Info="{}" Pixel="{}" Line="0" X="1" Y="2"/>'
    '<GCP Pixel="9" Line="0" X="2" Y="2"/></GCPList>'
)


@pytest.mark.parametrize(
    ("element", "reason"),
    [
        ('<SRS>LOCAL_CS["\xe9",UNIT["m",1]]</SRS>', "unreadable"),
        ("<SRS>garbage</SRS>", None),
        ("<GeoTransform>inf,10,0,5e6,0,-10</GeoTransform>", "header"),
        ("<GeoTransform>nan,10,0,5e6,0,-10</GeoTransform>", "header"),
        ("<GeoTransform>5e5,10,0,5e6,0,0</GeoTransform>", "header"),
        ("<GeoTransform>5e5,1e308,0,5e6,0,-10</GeoTransform>", "header"),
        (POINTS.format("", "1e999"), "header"),
        (POINTS.format("\xe9", "1"), "unreadable"),
        (POINTS.format("", "1").replace("EPSG:4326", "garbage"), None),
    ],
)
def test_a_strange_header_costs_its_scene_at_most(tmp_path, store, element, reason):
    write(tmp_path / "in.tif", [pixels()])
    (tmp_path / "in.vrt").write_bytes(VRT.format(element).encode("latin-1"))
    record = store(tmp_path / "in.vrt", ("red",))
    if reason:
        failed(record, reason, "in.vrt")
    else:
        done(record)


@pytest.mark.parametrize("error", [ValueError, OverflowError, KeyError])
def test_what_else_rasterio_raises_costs_the_scene(tmp_path, store, monkeypatch, error):
    def strange(*_):
        raise error("1e999")

    monkeypatch.setattr(sources, "read_header", strange)
    failed(store(write(tmp_path / "in.tif", [pixels()]), ("red",)), "unreadable", "in.tif", "1e999")


def test_tags_that_are_no_numbers_do_not_hinder_the_record(tmp_path, store):
    path = write(tmp_path / "in.tif", [pixels()])
    with rasterio.open(path, "r+") as file:
        file.scales, file.offsets = (float("inf"),), (float("nan"),)
    band = done(store(path, ("red",), scale=1.0, offset=0.0))["red"]
    assert (band["tags"]["scale"], band["tags"]["offset"]) == ("inf", "nan")


# --- refused --------------------------------------------------------------------------------------------------------


def test_files_that_cannot_be_read(tmp_path, store):
    failed(store(tmp_path / "gone.tif"), "not_found", "gone.tif")
    (tmp_path / "empty.tif").touch()
    failed(store(tmp_path / "empty.tif"), "unreadable", "empty.tif", "0 bytes")
    (tmp_path / "text.tif").write_text("no raster")
    failed(store(tmp_path / "text.tif"), "unreadable", "text.tif", "not recognized")
    whole = write(tmp_path / "whole.tif", [pixels()], tiled=True, compress="lzw").read_bytes()
    (tmp_path / "cut.tif").write_bytes(whole[: len(whole) // 2])
    message = failed(store(tmp_path / "cut.tif", ("red",)), "unreadable", "cut.tif")
    assert "Read error" in message or "IReadBlock" in message, "GDAL's own words"
    assert not list(store.folder.glob("*.tif")) and not list(store.folder.glob(".*.tmp"))
    assert not (store.folder / ".started").exists()


def test_a_damaged_jpeg_is_not_stored_as_grey(tmp_path, store):
    path = write(tmp_path / "in.tif", [pixels("uint8")], compress="jpeg", tiled=True, blockxsize=512, blockysize=512)
    with open(path, "r+b") as file:
        file.seek(path.stat().st_size // 2)
        file.write(b"\xff\xd9" * 200)
    failed(store(path, ("red",)), "unreadable", "in.tif")
    assert not list(store.folder.glob("*.tif"))


def test_complex_pixels_are_refused(tmp_path, store):
    failed(store(write(tmp_path / "in.tif", [pixels("complex64")]), ("red",)), "complex_dtype", "complex64")


def test_a_damaged_source_leaves_no_old_band_behind(tmp_path, store):
    path = write(tmp_path / "in.tif", [pixels()], tiled=True, compress="lzw")
    done(store(path, ("red",)))
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])
    failed(store(path, ("red",)), "unreadable")
    assert not (store.folder / "red.tif").exists()


# --- indexed in place -----------------------------------------------------------------------------------------------

CONFORMING = {"tiled": True, "blockxsize": 512, "blockysize": 512, "compress": "zstd", "interleave": "band"}


@pytest.mark.parametrize("predictor", [1, 2])
def test_a_conforming_file_is_indexed_not_rewritten(tmp_path, store, predictor):
    source = [pixels(), pixels(seed=1)]
    path = write(tmp_path / "in.tif", source, predictor=predictor, nodata=3, **CONFORMING)
    bands = done(store(path))
    assert not list(store.folder.glob("*.tif"))
    for number, (band, original) in enumerate(zip(bands.values(), source, strict=True), 1):
        assert band["path"] == str(path) and not band["written"] and band["band"] == number
        assert band["nodata"] == 3 and np.array_equal(read_back(store, band)[0], original)


def test_digest_of_pixels_is_the_same_in_place_and_written(tmp_path, store):
    in_place = done(store(write(tmp_path / "a.tif", [pixels()], **CONFORMING), ("red",)))["red"]
    written = done(store(write(tmp_path / "b.tif", [pixels()]), ("red",)))["red"]
    assert not in_place["written"] and written["written"]
    assert in_place["pixel_digest"] == written["pixel_digest"]


def test_a_conforming_file_is_rewritten_where_the_store_is_a_product(tmp_path, store):
    path = write(tmp_path / "in.tif", [pixels(shape=(600, 700))], **CONFORMING)
    assert done(store(path, ("red",), cog={"overviews": True}))["red"]["written"]


@pytest.mark.parametrize(
    "change", [{"blockxsize": 256, "blockysize": 256}, {"interleave": "pixel"}, {"compress": "lzw"}]
)
def test_what_does_not_conform_is_rewritten(tmp_path, store, change):
    path = write(tmp_path / "in.tif", [pixels(), pixels(seed=1)], **(CONFORMING | change))
    assert done(store(path))["red"]["written"]


def test_a_damaged_tile_of_a_conforming_file_is_found(tmp_path, store):
    path = write(tmp_path / "in.tif", [pixels()], **CONFORMING)
    with open(path, "r+b") as file:
        file.seek(path.stat().st_size - 2000)
        file.write(b"\0" * 300)
    failed(store(path, ("red",)), "unreadable", "in.tif")


# --- resume ---------------------------------------------------------------------------------------------------------


def times(folder: Path) -> dict:
    return {path.name: path.stat().st_mtime_ns for path in folder.glob("*.tif")}


def test_a_second_run_writes_nothing(tmp_path, store, monkeypatch):
    path = write(tmp_path / "in.tif", [pixels(), pixels(seed=1)])
    first = store(path)
    before = times(store.folder)
    (store.folder / "record.json").unlink()
    monkeypatch.setattr(ingest.Store, "_read", None)
    second = store(path)
    assert times(store.folder) == before and second["bands"] == first["bands"]
    assert second["bytes"] == first["bytes"] and second["seconds"]["read"] == first["seconds"]["read"]


def test_a_band_that_is_added_is_written_alone(tmp_path, store):
    path = write(tmp_path / "in.tif", [pixels(), pixels(seed=1)])
    done(store(path, bands=["red"]))
    before = times(store.folder)
    assert list(done(store(path))) == ["red", "nir"]
    assert times(store.folder)["red.tif"] == before["red.tif"]


def test_a_band_file_that_went_or_changed_is_remade(tmp_path, store):
    path = write(tmp_path / "in.tif", [pixels(), pixels(seed=1)])
    bands = done(store(path))
    before = times(store.folder)
    (store.folder / "nir.tif").unlink()
    assert done(store(path))["nir"]["pixel_digest"] == bands["nir"]["pixel_digest"]
    assert times(store.folder)["red.tif"] == before["red.tif"]
    data = bytearray((store.folder / "red.tif").read_bytes())
    data[len(data) // 2] ^= 255
    (store.folder / "red.tif").write_bytes(data)
    remade = done(store(path))["red"]
    assert np.array_equal(read_back(store, remade)[0], pixels())


def test_a_copied_store_is_kept_by_checksum(tmp_path, store):
    path = write(tmp_path / "in.tif", [pixels()])
    done(store(path, ("red",)))
    os.utime(store.folder / "red.tif", ns=(1, 1))
    assert done(store(path, ("red",)))["red"]["mtime_ns"] == 1
    assert times(store.folder) == {"red.tif": 1}


def test_a_changed_source_is_stored_anew(tmp_path, store):
    path = write(tmp_path / "in.tif", [pixels()])
    first = done(store(path, ("red",)))["red"]
    write(path, [pixels(seed=5)])
    second = done(store(path, ("red",)))["red"]
    assert first["key"] != second["key"] and np.array_equal(read_back(store, second)[0], pixels(seed=5))


def test_a_changed_sidecar_is_stored_anew(tmp_path, store):
    path = write(tmp_path / "in.tif", [pixels()])
    keys = [done(store(path, ("red",)))["red"]["key"]]
    for nodata in (7, 11):
        Path(f"{path}.aux.xml").write_text(
            f'<PAMDataset><PAMRasterBand band="1"><NoDataValue>{nodata}</NoDataValue></PAMRasterBand></PAMDataset>'
        )
        record = store(path, ("red",))
        assert done(record)["red"]["nodata"] == nodata
        assert record["sources"][0]["sidecars"] == [f"{path}.aux.xml"]
        keys.append(record["bands"]["red"]["key"])
    assert len(set(keys)) == 3


@pytest.mark.parametrize("nested", [False, True])
def test_a_changed_file_behind_a_virtual_raster_is_stored_anew(tmp_path, store, nested):
    path = write(tmp_path / "in.tif", [pixels()])
    write_vrt(tmp_path / "in.vrt", ("UInt16", path))
    write_vrt(tmp_path / "outer.vrt", ("UInt16", tmp_path / "in.vrt"))
    vrt = tmp_path / ("outer.vrt" if nested else "in.vrt")
    done(store(vrt, ("red",)))
    write(path, [pixels(seed=5)])
    assert np.array_equal(read_back(store, done(store(vrt, ("red",)))["red"])[0], pixels(seed=5))


def test_pyramids_that_are_built_later_change_nothing(tmp_path, store):
    path = write(tmp_path / "in.tif", [pixels()])
    key = done(store(path, ("red",)))["red"]["key"]
    shutil.copy(path, tmp_path / "copy.tif")
    with rasterio.Env(TIFF_USE_OVR=True), rasterio.open(tmp_path / "copy.tif", "r+") as file:
        file.build_overviews([2])
    (tmp_path / "copy.tif.ovr").rename(f"{path}.ovr")
    with rasterio.open(path) as file:
        assert file.overviews(1) == [2]
    assert done(store(path, ("red",)))["red"]["key"] == key


def test_the_zstd_level_rewrites_nothing(tmp_path, store):
    path = write(tmp_path / "in.tif", [pixels()])
    done(store(path, ("red",)))
    before = times(store.folder)
    done(store(path, ("red",), cog={"zstd_level": 12}))
    assert times(store.folder) == before


# --- faults and kills -----------------------------------------------------------------------------------------------


def test_a_fault_is_retried_and_then_recorded(tmp_path, store, monkeypatch):
    path = write(tmp_path / "in.tif", [pixels()])

    def full(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(ingest.Store, "_convert", full)
        for _ in range(2):
            with pytest.raises(RetryableError, match=r"S1.*No space left"):
                store(path, ("red",))
            assert not (store.folder / "record.json").exists()
        record = store(path, ("red",))
        failed(record, "io_error", "No space left")
        assert record["retryable"] and record["attempts"] == 3
    assert done(store(path, ("red",))), "the count begins anew after a record"


def test_a_fault_that_lasts_is_not_retried(tmp_path, store):
    path = write(tmp_path / "in.tif", [pixels()])
    (store.folder / "red.tif").mkdir(parents=True)
    assert not store(path, ("red",))["retryable"]
    failed(store(path, ("red",)), "unwritable", "red.tif")


def test_out_of_memory_is_a_fault(tmp_path, store, monkeypatch):
    def full(*_):
        raise MemoryError

    monkeypatch.setattr(ingest.Store, "_convert", full)
    record = store(write(tmp_path / "in.tif", [pixels()]), ("red",), max_attempts=1)
    assert record["reason"] == "out_of_memory" and record["retryable"]


def test_a_bug_is_not_a_failed_scene(tmp_path, store, monkeypatch):
    path = write(tmp_path / "in.tif", [pixels()])

    def bug(*_):
        raise NameError("typo")

    monkeypatch.setattr(ingest.Store, "_convert", bug)
    for _ in range(4):
        with pytest.raises(NameError):
            store(path, ("red",))
    assert not (store.folder / "record.json").exists()


def test_a_source_that_changes_while_it_is_read(tmp_path, store, monkeypatch):
    path = write(tmp_path / "in.tif", [pixels()])
    convert = ingest.Store._convert

    def touch(*arguments):
        entries = convert(*arguments)
        os.utime(path, ns=(5, 5))
        return entries

    monkeypatch.setattr(ingest.Store, "_convert", touch)
    with pytest.raises(RetryableError, match="changed while"):
        store(path, ("red",))
    assert not list(store.folder.glob("*.tif"))


CHILD = textwrap.dedent(
    """
    import json, os, signal, sys, time
    from cogmill import ingest, sources
    arguments, how = json.loads(sys.argv[1]), sys.argv[2]
    read = ingest.Store._read

    def stopped(self, dataset, file, bands, window):
        if window.row and how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if window.row:
            open(arguments["record"] + ".waits", "w").close()
            time.sleep(60)
        return read(self, dataset, file, bands, window)

    ingest.WINDOW_BYTES = 1
    ingest.Store._read = stopped
    ingest.to_cog(**arguments)
    """
)


def child(store, path, how):
    arguments = {
        "scene": "S1",
        "row": {"scene": "S1", "path": str(path)},
        "sensor": sensor("red"),
        "bands": ["red"],
        "cog": {"bands": "needed", "overviews": False, "zstd_level": 1},
        "record": str(store.folder / "record.json"),
        "max_attempts": 3,
    }
    return subprocess.Popen([sys.executable, "-c", CHILD, json.dumps(arguments), how], stderr=subprocess.PIPE)


def test_a_scene_that_kills_its_process_twice_is_recorded_as_crashed(tmp_path, store):
    path = write(tmp_path / "in.tif", [pixels(shape=(1100, 600))])
    for _ in range(2):
        killed = child(store, path, "kill")
        killed.communicate(timeout=120)
        assert killed.returncode == -signal.SIGKILL
        assert not list(store.folder.glob("*.tif")), "nothing half-written has a final name"
    failed(store(path, ("red",)), "crashed", "2 times", "`cogmill forget S1`")
    assert not list(store.folder.glob(".*.tmp")), "temporary files of the dead are gone"
    assert done(store(path, ("red",))), "after the record was removed it is tried anew"


def test_a_cancelled_job_is_no_crash_and_leaves_no_temporary_file(tmp_path, store):
    path = write(tmp_path / "in.tif", [pixels(shape=(1100, 600))])
    for _ in range(2):
        job = child(store, path, "wait")
        waits = store.folder / "record.json.waits"
        while not waits.exists() and job.poll() is None:
            pass
        job.terminate()
        job.communicate(timeout=120)
        assert job.returncode == 143
        waits.unlink()
        assert not list(store.folder.glob("*.tif")) and not list(store.folder.glob(".*.tmp"))
    assert done(store(path, ("red",)))


# --- names of data sets ---------------------------------------------------------------------------------------------


def test_the_local_file_behind_a_data_set_name(tmp_path):
    archive = tmp_path / "a b.zip"
    archive.touch()
    for name in (
        str(archive),
        f"/vsizip/{archive}/in/x.tif",
        f"/vsizip{archive}/x.tif",
        f'NETCDF:"{archive}":red',
        f"GTIFF_DIR:2:{archive}",
    ):
        assert local_file(name) == str(archive), name
    assert local_file("/vsicurl/https://example.org/x.tif") is None
    assert local_file(str(tmp_path / "gone.tif")) is None


def test_a_raster_inside_an_archive(tmp_path, store):
    inner = write(tmp_path / "in.tif", [pixels()])
    shutil.make_archive(str(tmp_path / "raw"), "zip", tmp_path, inner.name)
    band = done(store(f"/vsizip/{tmp_path}/raw.zip/in.tif", ("red",)))["red"]
    assert band["written"] and np.array_equal(read_back(store, band)[0], pixels())
    write(tmp_path / "per" / "red.tif", [pixels(seed=3)])
    shutil.make_archive(str(tmp_path / "per"), "zip", tmp_path / "per")
    done(store(f"/vsizip/{tmp_path}/per.zip/{{band}}.tif", ("red",)))
    failed(store(f"/vsizip/{tmp_path}/per.zip/{{band}}.tif", ("nir",)), "not_found", "nir.tif")


SERVER = textwrap.dedent(
    """
    import http.server, pathlib, re, sys

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_HEAD(self):
            self.do_GET()

        def do_GET(self):
            path, code = pathlib.Path(sys.argv[1], self.path.lstrip("/")), re.search("fail([0-9]{3})", self.path)
            if code or not path.is_file():
                self.send_error(int(code[1]) if code else 404)
                return
            data, span = path.read_bytes(), self.headers.get("Range", "bytes=0-").removeprefix("bytes=")
            first, _, last = span.partition("-")
            part = data[int(first) : int(last) + 1 if last else None]
            self.send_response(206 if "Range" in self.headers else 200)
            self.send_header("Accept-Ranges", "bytes")
            self.send_header("Content-Length", str(len(part)))
            self.send_header("Content-Range", f"bytes {first}-{int(first) + len(part) - 1}/{len(data)}")
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(part)

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    print(server.server_port, flush=True)
    server.serve_forever()
    """
)


@pytest.fixture
def server(tmp_path, monkeypatch):
    """Serve tmp_path/web from another process, since GDAL opens files under Python's lock; gives the address."""
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("GDAL_HTTP_MAX_RETRY", "0")
    (tmp_path / "web").mkdir()
    with subprocess.Popen([sys.executable, "-c", SERVER, str(tmp_path / "web")], stdout=subprocess.PIPE) as running:
        yield f"/vsicurl/http://127.0.0.1:{int(running.stdout.readline())}"
        running.kill()


def test_a_raster_on_a_server(tmp_path, store, server):
    write(tmp_path / "web" / "red.tif", [pixels()])
    band = done(store(f"{server}/red.tif", ("red",)))["red"]
    assert band["written"] and np.array_equal(read_back(store, band)[0], pixels())


def test_what_a_server_lacks_is_not_asked_for_again(tmp_path, store, server):
    failed(store(f"{server}/gone.tif", ("red",)), "not_found", "gone.tif")
    write(tmp_path / "web" / "red_B04.tif", [pixels()])
    of = sensor("red", red={"file": ["B4", "B04"]})
    assert done(store(f"{server}/red_{{band}}.tif", ("red",), of))
    failed(store(f"{server}/nir_{{band}}.tif", ("red",), of), "not_found", "nir_B4.tif", "nir_B04.tif")


def test_a_server_that_fails_is_tried_again(tmp_path, store, server):
    with pytest.raises(RetryableError, match="503") as caught:
        store(f"{server}/fail503.tif", ("red",))
    assert caught.value.reason == "network"
    failed(store(f"{server}/fail403.tif", ("red",)), "forbidden", "credentials")

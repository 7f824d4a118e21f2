"""The tile index: every kind of TIFF, and files that lie."""

import struct
import tracemalloc

import numpy as np
import pytest
import rasterio
import tifffile
from cog_tools import PLACED, noise, write_cog
from hypothesis import given, settings
from hypothesis import strategies as st
from rasterio.shutil import copy

from cogmill.cog import index as indexing
from cogmill.cog.index import read_index, why_not_conforming
from cogmill.errors import CogmillError, SceneError

RASTERS = {"driver": "GTiff", "crs": PLACED.crs, "transform": rasterio.Affine(*PLACED.transform)}
CONFORMING = {"tiled": True, "blockxsize": 512, "blockysize": 512, "compress": "ZSTD", "predictor": 2}


def write_gdal(path, pixels, **options):
    """`pixels` (bands, rows, cols) by GDAL."""
    profile = RASTERS | {"count": len(pixels), "height": pixels.shape[1], "width": pixels.shape[2]} | options
    with rasterio.open(path, "w", dtype=pixels.dtype, **profile) as dataset:
        dataset.write(pixels)
    return path


def tifffile_pages(path):
    """(offsets, counts) of each page by tifffile, the same tiles found by other code."""
    with tifffile.TiffFile(path) as tiff:
        return [(list(page.dataoffsets), list(page.databytecounts)) for page in tiff.pages]


@pytest.mark.parametrize("big", ["YES", "NO"])
@pytest.mark.parametrize("endian", ["LITTLE", "BIG"])
@pytest.mark.parametrize("interleave", ["pixel", "band"])
def test_gdal_files_of_all_kinds(tmp_path, big, endian, interleave):
    bands = np.stack([noise("uint16", (600, 700), seed) for seed in range(3)])
    path = write_gdal(tmp_path / "a.tif", bands, BIGTIFF=big, ENDIANNESS=endian, interleave=interleave, **CONFORMING)
    offsets, counts = tifffile_pages(path)[0]
    for band in (1, 2, 3):
        index = read_index(path, band)
        image = index.images[0]
        tiles = slice(4 * (band - 1), 4 * band) if interleave == "band" else slice(0, 4)
        assert image.offsets.ravel().tolist() == offsets[tiles]
        assert image.counts.ravel().tolist() == counts[tiles]
        assert (index.big, image.byteorder) == (big == "YES", "<" if endian == "LITTLE" else ">")
        assert (image.shape, image.tile, image.dtype, image.samples) == ((600, 700), (512, 512), "uint16", 3)
        assert (image.predictor, image.compression, image.planar) == (2, 50000, 2 if interleave == "band" else 1)
        reason = why_not_conforming(index)
        if interleave == "pixel":
            assert "interleaves 3 bands" in reason
        elif endian == "BIG":
            assert "big-endian" in reason
        else:
            assert reason is None
    with pytest.raises(SceneError, match=r"has 3 bands, band 4") as error:
        read_index(path, 4)
    assert error.value.reason == "band_missing"


@pytest.mark.parametrize("dtype", ["int8", "uint64", "float32", "float64", "uint8", "int32"])
def test_types(tmp_path, dtype):
    predictor = 3 if "float" in dtype else 2
    path = write_gdal(tmp_path / "a.tif", noise(dtype, (1, 40, 50)), **CONFORMING | {"predictor": predictor})
    index = read_index(path)
    assert index.images[0].dtype == dtype
    assert why_not_conforming(index) is None


@pytest.mark.parametrize(
    ("pixels", "options", "why"),
    [
        (noise("uint16", (1, 40, 50)), {"compress": "ZSTD"}, "strips"),
        (noise("uint16", (1, 40, 50)), CONFORMING | {"compress": "DEFLATE"}, "compression is 8"),
        (noise("uint16", (1, 40, 50)), CONFORMING | {"blockxsize": 256, "blockysize": 128}, "128 x 256"),
        (noise("uint16", (1, 40, 50)) >> 4, CONFORMING | {"predictor": 1, "NBITS": 12}, "12 bits"),
        (noise("float32", (1, 40, 50)).astype("complex64"), CONFORMING | {"predictor": 1}, "64 bits"),
    ],
)
def test_why_a_file_must_be_rewritten(tmp_path, pixels, options, why):
    index = read_index(write_gdal(tmp_path / "a.tif", pixels, **options))
    assert why in why_not_conforming(index)


def test_tifffile_files(tmp_path):
    pixels = noise("int16", (300, 200))
    tifffile.imwrite(tmp_path / "strips.tif", pixels, byteorder=">", bigtiff=True, rowsperstrip=7)
    tifffile.imwrite(tmp_path / "tiles.tif", np.stack([pixels, pixels]), tile=(16, 32), planarconfig="separate")
    strips = read_index(tmp_path / "strips.tif").images[0]
    assert (strips.tiled, strips.tile, strips.byteorder, strips.dtype) == (False, (7, 200), ">", "int16")
    assert strips.offsets.ravel().tolist() == tifffile_pages(tmp_path / "strips.tif")[0][0]
    tiles = read_index(tmp_path / "tiles.tif", 2).images[0]
    assert tiles.tile == (16, 32)
    assert tiles.offsets.ravel().tolist() == tifffile_pages(tmp_path / "tiles.tif")[0][0][19 * 7 :]


def test_overviews_and_masks_are_told_from_other_pages(tmp_path):
    with rasterio.Env(GDAL_TIFF_INTERNAL_MASK=True):
        write_gdal(tmp_path / "a.tif", noise("uint8", (1, 1100, 1300)))
        with rasterio.open(tmp_path / "a.tif", "r+") as dataset:
            dataset.write_mask(np.eye(1100, 1300, dtype=bool))
        copy(tmp_path / "a.tif", tmp_path / "cog.tif", driver="COG", compress="ZSTD", blocksize=512)
    index = read_index(tmp_path / "cog.tif")
    assert [image.shape for image in index.images] == [(1100, 1300), (550, 650), (275, 325)]
    assert [mask.shape for mask in index.masks] == [(1100, 1300), (550, 650), (275, 325)]
    assert {mask.kind for mask in index.masks} == {"mask"}
    assert {mask.bits for mask in index.masks} == {1}
    assert index.layout_cog
    assert index.ghost["MASK_INTERLEAVED_WITH_IMAGERY"] == "YES"
    assert "mask" in why_not_conforming(index)
    tifffile.imwrite(tmp_path / "pages.tif", np.zeros((2, 40, 50), np.uint8), photometric="minisblack")
    pages = read_index(tmp_path / "pages.tif")
    assert len(pages.images) == 1
    assert pages.masks == (None,)
    assert not pages.layout_cog


def test_external_overviews_are_not_the_files(tmp_path):
    path = write_gdal(tmp_path / "a.tif", noise("uint8", (1, 600, 600)), **CONFORMING)
    with rasterio.Env(TIFF_USE_OVR=True), rasterio.open(path, "r+") as dataset:
        dataset.build_overviews([2], rasterio.enums.Resampling.nearest)
    assert (tmp_path / "a.tif.ovr").exists()
    assert len(read_index(path).images) == 1


def test_sparse_tiles(tmp_path):
    profile = RASTERS | CONFORMING | {"count": 1, "height": 1024, "width": 1024, "dtype": "int16", "nodata": -5}
    with rasterio.open(tmp_path / "a.tif", "w", SPARSE_OK=True, **profile) as dataset:
        dataset.write(noise("int16", (512, 512)), 1, window=rasterio.windows.Window(512, 0, 512, 512))
    image = read_index(tmp_path / "a.tif").images[0]
    assert (image.counts > 0).tolist() == [[False, True], [False, False]]
    assert image.fill == -5


@pytest.mark.parametrize(
    ("text", "dtype", "value"),
    [
        ("7", "uint8", 7),
        ("-9999.0", "int16", -9999),
        ("18446744073709551615", "uint64", 2**64 - 1),
        ("-9223372036854775808", "int64", -(2**63)),
        ("-3.4028234663852886e+38", "float32", -3.4028234663852886e38),
        ("256", "uint8", None),
        ("-1", "uint16", None),
        ("1.5", "int32", None),
        ("nan", "int16", None),
        ("inf", "int16", None),
        ("NA", "float32", None),
        ("1_0", "int16", None),
        ("1_0", "float32", None),
        ("-1.7976931348623157e+308", "float32", None),
        ("-1.7976931348623157e+308", "float64", -1.7976931348623157e308),
        ("inf", "float32", float("inf")),
        ("", "uint8", None),
    ],
)
def test_nodata_text(text, dtype, value):
    assert indexing.parse_nodata(text, dtype) == value


def test_nodata_nan():
    assert np.isnan(indexing.parse_nodata(" nan ", "float32"))


def test_nodata_text_that_is_no_number_is_not_conforming(tmp_path):
    path = tmp_path / "a.tif"
    write_gdal(path, noise("uint8", (1, 30, 30)), nodata=255, **CONFORMING)
    data = path.read_bytes()
    at = data.index(struct.pack("<HHI", 42113, 2, 4)) + 8
    path.write_bytes(data[:at] + b"n/a\0" + data[at + 4 :])
    assert "'n/a'" in why_not_conforming(read_index(path))


# -- files that lie


def directory(entries, following=0):
    """A little-endian classic directory of (tag, type, count, value or offset)."""
    body = b"".join(struct.pack("<HHII", *entry) for entry in sorted(entries))
    return struct.pack("<H", len(entries)) + body + struct.pack("<I", following)


def simple(**changed):
    """Entries of one 8-bit 512 x 512 tile at byte 8."""
    entries = {256: (3, 1, 512), 257: (3, 1, 512), 258: (3, 1, 8), 259: (3, 1, 50000), 262: (3, 1, 1)}
    entries |= {277: (3, 1, 1), 322: (3, 1, 512), 323: (3, 1, 512), 324: (4, 1, 8), 325: (4, 1, 4)}
    entries |= {int(tag[1:]): value for tag, value in changed.items()}
    return [(tag, *value) for tag, value in entries.items() if value]


def classic(entries, following=0, padding=64):
    return struct.pack("<2sHI", b"II", 42, 12) + b"tile" + directory(entries, following) + bytes(padding)


HOSTILE = {
    "empty": b"",
    "seven bytes": b"II*\0\x08\0\0",
    "a picture": b"\x89PNG\r\n\x1a\n" + bytes(50),
    "magic 44": struct.pack("<2sHI", b"II", 44, 8) + bytes(50),
    "no directory": struct.pack("<2sHI", b"II", 42, 0) + bytes(50),
    "directory behind the end": struct.pack("<2sHI", b"II", 42, 4000) + bytes(50),
    "directory cut": classic(simple())[:60],
    "directory points at itself": classic(simple(), following=12),
    "65535 tags": struct.pack("<2sHI", b"II", 42, 8) + b"\xff\xff" + bytes(100),
    "BigTIFF of 2**60 tags": struct.pack("<2sHHHQ", b"II", 43, 8, 0, 16) + struct.pack("<Q", 1 << 60) + bytes(50),
    "BigTIFF cut": struct.pack("<2sHHH", b"II", 43, 8, 0),
    "BigTIFF of 4-byte offsets": struct.pack("<2sHHHQ", b"II", 43, 4, 0, 16) + bytes(50),
    "tile behind the end": classic(simple(t324=(4, 1, 5000))),
    "tile in the header": classic(simple(t324=(4, 1, 2))),
    "tile longer than the file": classic(simple(t325=(4, 1, 0xFFFFFFFF))),
    "offset and count that wrap": classic(simple(t324=(4, 1, 0xFFFFFFFF), t325=(4, 1, 0xFFFFFFFF))),
    "2**32 - 1 offsets": classic(simple(t324=(4, 0xFFFFFFFF, 8))),
    "offsets lack": classic(simple(t324=None)),
    "counts lack": classic(simple(t325=None)),
    "fewer offsets than tiles": classic(simple(t256=(4, 1, 2048))),
    "2**62 pixels": classic(simple(t256=(4, 1, 0x7FFFFFFF), t257=(4, 1, 0x7FFFFFFF))),
    "2**62 pixels in tiles of one": classic(
        simple(t256=(4, 1, 0x7FFFFFFF), t257=(4, 1, 0x7FFFFFFF), t322=(3, 1, 1), t323=(3, 1, 1))
    ),
    "no width": classic(simple(t256=(3, 1, 0))),
    "tiles of no width": classic(simple(t322=(3, 1, 0))),
    "tiles of no height": classic(simple(t323=None)),
    "no bands": classic(simple(t277=(3, 1, 0))),
    "planes that are not there": classic(simple(t277=(3, 1, 60000), t284=(3, 1, 2))),
    "width as text": classic(simple(t256=(2, 1, 65))),
    "offsets as floats": classic(simple(t324=(11, 1, 8))),
    "bits behind the end": classic(simple(t258=(3, 60000, 3000))),
    "nodata behind the end": classic([*simple(), (42113, 2, 100, 3000)]),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_hostile_files_are_scene_errors(tmp_path, what):
    path = tmp_path / "a.tif"
    path.write_bytes(HOSTILE[what])
    tracemalloc.start()
    with pytest.raises(SceneError, match=r"a\.tif") as error:
        read_index(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert error.value.reason in ("damaged_index", "not_tiff")
    assert peak < 4 << 20


def test_the_simple_file_of_these_tests_is_read(tmp_path):
    (tmp_path / "a.tif").write_bytes(classic(simple()))
    image = read_index(tmp_path / "a.tif").images[0]
    assert (image.offsets.tolist(), image.counts.tolist()) == ([[8]], [[4]])


def test_unknown_field_types_are_skipped(tmp_path):
    (tmp_path / "a.tif").write_bytes(classic([*simple(), (60000, 99, 0xFFFFFFFF, 0xFFFFFFFF)]))
    assert read_index(tmp_path / "a.tif").images[0].dtype == "uint8"


def test_long_chains_end(tmp_path):
    data = bytearray(struct.pack("<2sHI", b"II", 42, 12) + b"tile" + directory(simple(), 200))
    data += bytes(200 - len(data))
    one = simple(t254=(4, 1, 1))
    for _ in range(indexing.MAX_DIRECTORIES):
        data += directory(one, len(data) + len(directory(one)))
    (tmp_path / "a.tif").write_bytes(data)
    with pytest.raises(SceneError, match=r"more than|tags"):
        read_index(tmp_path / "a.tif")


def test_tables_that_images_share_cannot_multiply_memory(tmp_path):
    tiles = 20_000
    start = 12 + 200 * 200
    data = bytearray(struct.pack("<2sHI", b"II", 42, 12) + b"tile")
    table = (4, tiles, start)
    shape = {
        "t256": (4, 1, tiles),
        "t257": (3, 1, 1),
        "t322": (3, 1, 1),
        "t323": (3, 1, 1),
        "t324": table,
        "t325": table,
    }
    one = simple(t254=(4, 1, 1), **shape)
    data += directory(simple(**shape), 12 + len(directory(simple(**shape))))
    for _ in range(200):
        data += directory(one, len(data) + len(directory(one)))
    (tmp_path / "a.tif").write_bytes(data.ljust(start, b"\0") + bytes(4 * tiles))
    with pytest.raises(SceneError, match="tile tables"):
        read_index(tmp_path / "a.tif")


def test_files_that_are_not_there(tmp_path):
    for path in (tmp_path / "none.tif", tmp_path, tmp_path / "a.tif" / "b.tif"):
        with pytest.raises(SceneError) as error:
            read_index(path)
        assert error.value.reason == "unreadable"
        assert str(path) in str(error.value)


@pytest.fixture(scope="module")
def valid_cog(tmp_path_factory):
    path = tmp_path_factory.mktemp("index") / "a.tif"
    pixels = noise("uint16", (700, 600))
    write_cog(path, pixels, nodata=7, valid=(pixels > 9).astype("u1"))
    return path


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_any_change_of_the_index_is_a_scene_error_or_read(valid_cog, tmp_path_factory, data):
    damaged = bytearray(valid_cog.read_bytes()[:4096])
    for _ in range(data.draw(st.integers(1, 3))):
        damaged[data.draw(st.integers(0, 1500))] = data.draw(st.integers(0, 255))
    damaged = bytes(damaged) + valid_cog.read_bytes()[4096:]
    damaged = damaged[: data.draw(st.one_of(st.just(len(damaged)), st.integers(0, 5000)))]
    path = tmp_path_factory.getbasetemp() / "fuzzed.tif"
    path.write_bytes(damaged)
    try:
        assert read_index(path).images
    except CogmillError as error:
        assert isinstance(error, SceneError)


def test_shared_files_are_indexed_as_tifffile_does(shared):
    """Every TIFF of the shared cases: the same tiles as tifffile finds, or a SceneError."""
    indexed = 0
    for path in sorted((shared / "cases").glob("*.tif")):
        try:
            image = read_index(path).images[0]
        except SceneError:
            continue
        offsets, counts = tifffile_pages(path)[0]
        assert image.offsets.ravel().tolist() == offsets[: image.offsets.size], path
        assert image.counts.ravel().tolist() == counts[: image.counts.size], path
        indexed += 1
    assert indexed > 50

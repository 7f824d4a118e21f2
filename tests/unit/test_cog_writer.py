"""Writing COGs: what GDAL, rasterio, tifffile and rio-cogeo read is what was given, and only whole files get a name."""

import errno
import http.server
import os
import re
import struct
import threading
import warnings
from dataclasses import replace

import numpy as np
import pytest
import rasterio
import tifffile
import xxhash
import zstandard
from cog_tools import DTYPES, PLACED, noise, same_bits, write_cog
from rasterio.crs import CRS
from rio_cogeo.cogeo import cog_validate

from cogmill.codecs import cpu
from cogmill.cog import header as headers
from cogmill.cog import layout as layouts
from cogmill.cog import writer as writers
from cogmill.cog.index import read_index
from cogmill.cog.reader import CogReader
from cogmill.cog.validate import validate_cog
from cogmill.cog.writer import CogWriter, Header, Layer
from cogmill.errors import DamagedTileError, RetryableError, SceneError
from cogmill.grids import Window, windows
from cogmill.kernels.overviews import KINDS, reduce2

SHAPES = [(1, 1), (1, 700), (700, 2), (1537, 1025), (513, 511), (512, 512)]


def assert_valid_cog(path, levels=None):
    valid, errors, problems = cog_validate(str(path), strict=True, quiet=True)
    assert (valid, errors, problems) == (True, [], [])
    assert validate_cog(path) == []
    with rasterio.open(path) as dataset:
        assert dataset.tags(ns="IMAGE_STRUCTURE")["LAYOUT"] == "COG"
        assert dataset.tags(ns="IMAGE_STRUCTURE")["COMPRESSION"] == "ZSTD"
        assert dataset.block_shapes == [(512, 512)]
        assert levels is None or len(dataset.overviews(1)) == levels - 1
    assert [name for name in os.listdir(path.parent) if name.startswith((f".{path.name}", f"{path.name}."))] == []


def some_nodata(dtype):
    return float("nan") if np.dtype(dtype).kind == "f" else 7


# -- pixels


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("masked", [False, True])
def test_every_type_and_size_reads_the_same_in_gdal(tmp_path, dtype, shape, masked):
    path = tmp_path / "a.tif"
    pixels = noise(dtype, shape)
    nodata = some_nodata(dtype)
    pixels[: shape[0] // 3] = nodata
    valid = np.where(noise("uint8", shape, 3) > 100, 255, 0).astype(np.uint8) if masked else None
    info = write_cog(path, pixels, nodata, valid, threads=2)
    assert_valid_cog(path, len(info.pixel_digest))
    with rasterio.open(path) as dataset:
        assert dataset.dtypes == (dtype,)
        assert same_bits(dataset.read(1), pixels)
        assert dataset.nodata == nodata or (np.isnan(nodata) and np.isnan(dataset.nodata))
        wanted = valid if masked else np.where((pixels != pixels) | (pixels == nodata), 0, 255)
        assert np.array_equal(dataset.read_masks(1), wanted)
    with CogReader(path) as reader:
        got, got_valid = reader.read(Window(0, 0, *shape))
    assert same_bits(got, pixels)
    assert (got_valid is None) if not masked else same_bits(got_valid, valid)


@pytest.mark.parametrize("dtype", DTYPES)
def test_tifffile_reads_the_same(tmp_path, dtype, monkeypatch):
    pixels = noise(dtype, (600, 700))
    write_cog(tmp_path / "a.tif", pixels)
    # tifffile decodes neither ZSTD nor predictor 3 by itself; predictor 2 it does
    decompress = lambda data, out=None: zstandard.ZstdDecompressor().decompress(data)  # noqa: E731
    monkeypatch.setitem(tifffile.TIFF.DECOMPRESSORS._codecs, 50000, decompress)
    if "float" in dtype:
        monkeypatch.setitem(tifffile.TIFF.UNPREDICTORS._codecs, 3, undo_predictor_3)
    with tifffile.TiffFile(tmp_path / "a.tif") as tiff:
        assert same_bits(tiff.pages[0].asarray(), pixels)
        assert tiff.pages[0].predictor == (3 if "float" in dtype else 2)


def undo_predictor_3(data, axis=-2, out=None, dist=1):
    """NumPy alone: sums of bytes along the row, then planes from most to least significant."""
    shape, size = data.shape, data.dtype.itemsize
    flat = np.ascontiguousarray(data).view(np.uint8).reshape(-1, shape[axis] * size)
    planes = np.cumsum(flat, axis=1, dtype=np.uint8).reshape(-1, size, shape[axis])
    return planes.transpose(0, 2, 1).copy().view(f">f{size}").astype(data.dtype).reshape(shape)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", ["uint8", "int16", "uint32", "float32", "float64"])
@pytest.mark.parametrize("masked", [False, True])
def test_gdal_reads_our_overviews(tmp_path, kind, dtype, masked):
    path = tmp_path / "a.tif"
    pixels = noise(dtype, (1537, 2050))
    nodata = some_nodata(dtype)
    pixels[100:900, :1100] = nodata
    valid = np.where(noise("uint8", pixels.shape, 3) > 200, 255, 0).astype(np.uint8) if masked else None
    write_cog(path, pixels, nodata, valid, kind=kind)
    for level, shape in enumerate([(769, 1025), (385, 513), (193, 257)]):
        pixels, valid = reduce2(pixels, valid, nodata, kind)
        assert pixels.shape == shape
        with rasterio.open(path, overview_level=level) as dataset:
            assert same_bits(dataset.read(1), pixels)
            assert not masked or same_bits(dataset.read_masks(1), valid)
    assert_valid_cog(path, 4)


def test_overviews_can_be_left_out(tmp_path):
    write_cog(tmp_path / "a.tif", noise("uint8", (700, 800)), overviews=False)
    assert len(read_index(tmp_path / "a.tif").images) == 1


@pytest.mark.parametrize("shape", [(513, 512), (1100, 1024), (700, 1)])
def test_shapes_that_rio_cogeo_never_takes(tmp_path, shape):
    """It takes tiles as wide as the image for strips, and wants overviews of less than one pixel's width.

    GDAL's own COGs of these sizes fail likewise.
    """
    write_cog(tmp_path / "a.tif", noise("uint8", shape))
    rasterio.shutil.copy(tmp_path / "a.tif", tmp_path / "b.tif", driver="COG", compress="ZSTD", blocksize=512)
    ours, gdals = (cog_validate(str(tmp_path / name), strict=True, quiet=True) for name in ("a.tif", "b.tif"))
    assert ours == gdals
    assert not ours[0]
    assert validate_cog(tmp_path / "a.tif") == []


def test_payloads_of_nans_and_minus_zero_survive(tmp_path):
    pixels = np.zeros((600, 600), np.float32)
    pixels[0, 0] = -0.0
    pixels.view(np.uint32)[:, 513:] = 0x7FC0BEEF
    write_cog(tmp_path / "a.tif", pixels, np.nan)
    with rasterio.open(tmp_path / "a.tif") as dataset:
        assert same_bits(dataset.read(1), pixels)


# -- absent tiles and padding


@pytest.mark.parametrize(("dtype", "nodata"), [("uint8", None), ("int16", -5), ("float32", np.nan), ("float64", None)])
def test_tiles_of_fill_are_absent(tmp_path, dtype, nodata):
    pixels = np.full((1100, 1300), 0 if nodata is None else nodata, dtype)
    pixels[600, 600] = 1
    info = write_cog(tmp_path / "a.tif", pixels, nodata, kind="classes")
    index = read_index(tmp_path / "a.tif")
    assert [(image.counts > 0).sum() for image in index.images] == [1, 1, 1] if nodata is not None else [1, 0, 0]
    assert info.tiles == sum((image.counts > 0).sum() for image in index.images)
    assert all(((image.counts > 0) == (image.offsets > 0)).all() for image in index.images)
    assert_valid_cog(tmp_path / "a.tif")
    with rasterio.open(tmp_path / "a.tif") as dataset:
        assert same_bits(dataset.read(1), pixels)


def test_a_raster_of_nodata_alone_has_no_tile(tmp_path):
    pixels = np.full((600, 1300), 9, np.uint16)
    info = write_cog(tmp_path / "a.tif", pixels, 9, np.zeros(pixels.shape, np.uint8))
    assert info.tiles == 0
    assert_valid_cog(tmp_path / "a.tif", 3)
    with rasterio.open(tmp_path / "a.tif") as dataset:
        assert same_bits(dataset.read(1), pixels)
        assert not dataset.read_masks(1).any()


def test_only_absent_tiles_have_absent_masks(tmp_path):
    pixels = noise("uint8", (600, 1100))
    valid = np.zeros(pixels.shape, np.uint8)
    valid[:, 600] = 1
    pixels[:, 1024:] = 0
    valid[3, 1030] = 1
    write_cog(tmp_path / "a.tif", pixels, valid=valid)
    index = read_index(tmp_path / "a.tif")
    assert (index.images[0].counts > 0).tolist() == [[True, True, False]] * 2
    assert (index.masks[0].counts > 0).tolist() == [[True, True, True], [True, True, False]]
    assert_valid_cog(tmp_path / "a.tif")
    with rasterio.open(tmp_path / "a.tif") as dataset:
        assert np.array_equal(dataset.read_masks(1) > 0, valid > 0)


def test_padding_is_fill(tmp_path):
    write_cog(tmp_path / "a.tif", np.full((1, 2), 3, np.int16), -9)
    image = read_index(tmp_path / "a.tif").images[0]
    data = (tmp_path / "a.tif").read_bytes()[int(image.offsets[0, 0]) :][: int(image.counts[0, 0])]
    tile = cpu.decode_tile(data, "int16", (512, 512), 2)
    assert (tile == 3).sum() == 2
    assert (tile == -9).sum() == 512 * 512 - 2


# -- layout


def test_ghost_area_leaders_trailers_and_order(tmp_path):
    path = tmp_path / "a.tif"
    pixels = noise("uint8", (1100, 1300))
    write_cog(path, pixels, valid=np.where(pixels > 9, 255, 0).astype("u1"))
    data = path.read_bytes()
    with tifffile.TiffFile(path) as tiff:
        pages = [(page.shape, int(page.subfiletype), page.dataoffsets, page.databytecounts) for page in tiff.pages]
        assert all(page.compression == 50000 for page in tiff.pages)
    ghost = data[8 : data.index(b"\0", 8)]
    assert ghost == (
        b"GDAL_STRUCTURAL_METADATA_SIZE=000174 bytes\nLAYOUT=IFDS_BEFORE_DATA\nBLOCK_ORDER=ROW_MAJOR\n"
        b"BLOCK_LEADER=SIZE_AS_UINT4\nBLOCK_TRAILER=LAST_4_BYTES_REPEATED\nKNOWN_INCOMPATIBLE_EDITION=NO\n "
        b"MASK_INTERLEAVED_WITH_IMAGERY=YES\n"
    )
    assert [page[:2] for page in pages] == [
        *(((1100, 1300), 0), ((1100, 1300), 4)),
        *(((550, 650), 1), ((550, 650), 5)),
        *(((275, 325), 1), ((275, 325), 5)),
    ]
    expected = None
    for image, mask in reversed(list(zip(pages[::2], pages[1::2], strict=True))):
        for tile in range(len(image[2])):
            for offsets, counts in (image[2:], mask[2:]):
                offset, count = offsets[tile], counts[tile]
                assert expected is None or offset == expected  # nothing between tiles but trailer and leader
                assert struct.unpack("<I", data[offset - 4 : offset])[0] == count
                assert data[offset + count : offset + count + 4] == data[offset + count - 4 : offset + count]
                expected = offset + count + 8
    assert expected - 4 == len(data)  # nothing behind the last trailer


def test_checksums_in_the_file_and_in_the_answer(tmp_path):
    path = tmp_path / "a.tif"
    pixels = noise("uint16", (600, 700))
    info = write_cog(path, pixels, valid=np.ones(pixels.shape, np.uint8))
    data = path.read_bytes()
    assert info.checksum == xxhash.xxh3_128_hexdigest(data)
    assert (info.size, info.mtime_ns) == (len(data), path.stat().st_mtime_ns)
    with tifffile.TiffFile(path) as tiff:
        for page, wanted in zip(tiff.pages, [info.checksums, info.mask_checksums], strict=False):
            stored = np.frombuffer(page.tags[65117].value, "<u8")
            tiles = zip(page.dataoffsets, page.databytecounts, strict=True)
            assert stored.tolist() == [xxhash.xxh3_64_intdigest(data[o : o + c]) for o, c in tiles]
            assert stored.tolist() == wanted.ravel().tolist()


def test_digest_is_of_pixels_with_padding_and_in_the_tags(tmp_path):
    pixels = noise("int16", (600, 700))
    info = write_cog(tmp_path / "a.tif", pixels, -1)
    padded = np.full((1024, 1024), -1, np.int16)
    padded[:600, :700] = pixels
    tiles = [padded[r : r + 512, c : c + 512].tobytes() for r in (0, 512) for c in (0, 512)]
    joined = b"".join(xxhash.xxh3_64_intdigest(tile).to_bytes(8, "little") for tile in tiles)
    assert info.pixel_digest[0] == xxhash.xxh3_128_hexdigest(joined)
    with rasterio.open(tmp_path / "a.tif") as dataset:
        assert dataset.tags()["COGMILL_PIXEL_DIGEST"] == ",".join(info.pixel_digest)


def test_digest_depends_on_the_mask(tmp_path):
    pixels = noise("int16", (10, 10))
    valid = np.ones(pixels.shape, np.uint8)
    first = write_cog(tmp_path / "a.tif", pixels, valid=valid).pixel_digest
    valid[3, 3] = 0
    assert write_cog(tmp_path / "a.tif", pixels, valid=valid).pixel_digest != first


@pytest.mark.parametrize("masked", [False, True])
def test_big_tiff_when_offsets_do_not_fit(tmp_path, monkeypatch, masked):
    pixels = noise("uint16", (1100, 1300))
    pixels[:512, :512] = 0
    valid = np.where(pixels > 99, 255, 0).astype(np.uint8) if masked else None
    small = write_cog(tmp_path / "a.tif", pixels, 0, valid)
    monkeypatch.setattr(layouts, "CLASSIC_LIMIT", small.size)
    assert write_cog(tmp_path / "b.tif", pixels, 0, valid).checksum == small.checksum
    monkeypatch.setattr(layouts, "CLASSIC_LIMIT", small.size - 1)
    big = write_cog(tmp_path / "c.tif", pixels, 0, valid)
    assert [read_index(tmp_path / name).big for name in ("a.tif", "c.tif")] == [False, True]
    assert big.pixel_digest == small.pixel_digest
    assert_valid_cog(tmp_path / "c.tif", 3)
    with rasterio.open(tmp_path / "c.tif") as dataset, tifffile.TiffFile(tmp_path / "c.tif") as tiff:
        assert tiff.is_bigtiff
        assert same_bits(dataset.read(1), pixels)


def test_offsets_beyond_four_gib_are_planned_right():
    sizes = np.full((3, 3), 1 << 29, np.uint32)
    image = layouts.Image((1500, 1500), 0, 32, 3, 1, 3, sizes, np.zeros((3, 3), np.uint64), [])
    layout = layouts.lay_out([(image, None)])
    assert layout.big
    offsets = layout.offsets[0].ravel().tolist()
    assert offsets == [len(layout.head) + 4 + tile * ((1 << 29) + 8) for tile in range(9)]
    assert layout.size == offsets[-1] + (1 << 29) + 4


def test_libtiff_has_nothing_to_warn_of(tmp_path, caplog):
    write_cog(tmp_path / "a.tif", noise("uint8", (1100, 1300)), valid=np.ones((1100, 1300), np.uint8))
    with caplog.at_level("WARNING"), warnings.catch_warnings():
        warnings.simplefilter("error")
        with rasterio.open(tmp_path / "a.tif") as dataset:
            dataset.read(1)
            dataset.read_masks(1)
    assert caplog.records == []


# -- the same bytes


def test_same_pixels_and_header_give_the_same_file_for_any_window_and_threads(tmp_path):
    pixels = noise("int16", (1600, 1500)) // 16
    pixels[:600] = -1
    valid = np.where(noise("uint8", pixels.shape, 1) > 80, 255, 0).astype("u1")
    header = replace(PLACED, tags={"B": "2", "A": "1"}, band_tags={"Y": "y", "X": "x"})
    first = write_cog(tmp_path / "0.tif", pixels, -1, valid, header, tags={"K": "v"})
    again = replace(PLACED, tags={"A": "1", "B": "2"}, band_tags={"X": "x", "Y": "y"})
    for number, (rows, cols, threads, spool) in enumerate(
        [(4, None, 1, 1 << 28), (2, None, 3, 0), (1, 1, 2, 1 << 20), (1, 2, 1, 1000), (3, None, 4, 1 << 28)]
    ):
        options = {"tile_rows": rows, "tile_cols": cols, "threads": threads, "spool_bytes": spool}
        info = write_cog(tmp_path / f"{number + 1}.tif", pixels, -1, valid, again, tags={"K": "v"}, **options)
        assert info.checksum == first.checksum
        assert info.pixel_digest == first.pixel_digest
        assert (tmp_path / f"{number + 1}.tif").read_bytes() == (tmp_path / "0.tif").read_bytes()


def test_tiles_that_come_encoded_give_the_same_file(tmp_path):
    """What an encoder on a GPU does: all tiles of all levels, in an order of its own."""
    pixels = noise("float32", (600, 1100))
    pixels[:, 600:] = np.nan
    valid = np.where(pixels > 0, 255, 0).astype("u1")
    wanted = write_cog(tmp_path / "a.tif", pixels, np.nan, valid)
    layer = Layer(pixels.shape, "float32", np.nan, mask=True)
    with CogWriter(tmp_path / "b.tif", layer, PLACED) as writer:
        with CogReader(tmp_path / "a.tif") as reader:
            index = reader.index
        data = (tmp_path / "a.tif").read_bytes()
        for level in range(len(index.images)):
            for image in (index.masks[level], index.images[level]):
                for row, col in reversed(list(np.ndindex(image.counts.shape))):
                    offset, count = int(image.offsets[row, col]), int(image.counts[row, col])
                    mask = image.kind == "mask"
                    if not count:
                        writer.put_tile(level, (row, col), None, mask=mask)
                        continue
                    tile = data[offset : offset + count]
                    decoded = (
                        cpu.packed_mask(cpu.decode_mask(tile))
                        if mask
                        else cpu.decode_tile(tile, "float32", predictor=3)
                    )
                    writer.put_tile(level, (row, col), tile, cpu.pixel_digest_tile(decoded), mask=mask)
        assert writer.finish().checksum == wanted.checksum


# -- header


CUSTOM = CRS.from_proj4("+proj=laea +lat_0=12.5 +lon_0=-31.25 +x_0=1000 +y_0=-2000 +ellps=GRS80 +units=m +no_defs")
HEADERS = {
    "nothing": Header(),
    "no place, but texts": Header(unit="1", description="NDVI", tags={"A": "1"}),
    "no EPSG code": replace(PLACED, crs=CUSTOM.to_wkt()),
    "sinusoidal": replace(PLACED, crs=CRS.from_proj4("+proj=sinu +R=6371007.181 +units=m").to_wkt()),
    "oblique mercator": replace(PLACED, crs=CRS.from_epsg(3375).to_wkt()),
    "geographic": replace(PLACED, crs=CRS.from_epsg(4326).to_wkt(), transform=(0.1, 0.0, 5.0, 0.0, -0.1, 50.0)),
    "compound": replace(PLACED, crs=CRS.from_user_input("EPSG:32631+5773").to_wkt()),
    "rotated": replace(PLACED, transform=(8.0, 6.0, 5e5, 6.0, -8.0, 5e6)),
    "south-up": replace(PLACED, transform=(10.0, 0.0, 5e5, 0.0, 10.0, 5e6)),
    "not square": replace(PLACED, transform=(10.0, 0.0, 5e5, 0.0, -7.5, 5e6)),
    "place without CRS": replace(PLACED, crs=None),
    "CRS without place": replace(PLACED, transform=None),
    "point": replace(PLACED, point=True),
    "point and rotated": replace(PLACED, point=True, transform=(8.0, 6.0, 5e5, 6.0, -8.0, 5e6)),
    "gcps": Header(
        crs=CRS.from_epsg(4326).to_wkt(),
        gcps=(
            (0.0, 0.0, 5.0, 50.0, 1.0),
            (0.5, 99.5, 6.0, 50.1, 2.0),
            (99.0, 0.0, 5.1, 49.0, 0.0),
            (9.0, 9.0, 5.2, 49.5, 0.0),
        ),
    ),
    "rpcs": Header(
        rpcs={
            **{f"{name}_OFF": "12.5" for name in ("LINE", "SAMP", "LAT", "LONG", "HEIGHT")},
            **{f"{name}_SCALE": "100.25" for name in ("LINE", "SAMP", "LAT", "LONG", "HEIGHT")},
            **{
                f"{name}_COEFF": " ".join(str(i / 8) for i in range(20))
                for name in ("LINE_NUM", "LINE_DEN", "SAMP_NUM", "SAMP_DEN")
            },
            "ERR_BIAS": "1",
            "ERR_RAND": "2",
        }
    ),
    "scale and offset": replace(PLACED, scale=0.0001, offset=-0.1, unit="1", description="red"),
    "long numbers": replace(PLACED, scale=2.75e-05, offset=-0.19999999999999998),
    "unicode": replace(
        PLACED, unit="µm", description="прÿma 日本 🛰", tags={"STATION": "Zürich <&> \"'"}, band_tags={"λ": "842 nm"}
    ),
    "real TIFF tags": replace(
        PLACED, tags={"TIFFTAG_SOFTWARE": "cogmill 0", "TIFFTAG_IMAGEDESCRIPTION": "NDVI", "TIFFTAG_ARTIST": "Ä"}
    ),
    "white space": replace(PLACED, tags={"A": "  two\n lines \t", "EMPTY": ""}),
    "long": replace(PLACED, tags={"HISTORY": "x" * 100_000}),
    "colormap": replace(PLACED, colormap={0: (0, 0, 0, 255), 3: (10, 200, 30, 255), 255: (255, 255, 254, 255)}),
}


def normal_texts(texts):
    return {key: " ".join(value.split()) for key, value in texts.items() if value}


@pytest.mark.parametrize("what", HEADERS)
@pytest.mark.parametrize("size", [3, 600])
def test_metadata_survive(tmp_path, what, size):
    header = HEADERS[what]
    path = tmp_path / "a.tif"
    write_cog(path, noise("uint8", (size, size)), 255, header=header)
    assert os.listdir(tmp_path) == ["a.tif"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", rasterio.errors.NotGeoreferencedWarning)
        dataset = rasterio.open(path)
    with dataset:
        crs = dataset.gcps[1] if header.gcps else dataset.crs
        assert crs == (CRS.from_wkt(header.crs) if header.crs else None)
        if not header.gcps:
            assert tuple(dataset.transform)[:6] == pytest.approx(header.transform or (1, 0, 0, 0, 1, 0), rel=1e-12)
        else:
            assert [(p.row, p.col, p.x, p.y, p.z) for p in dataset.gcps[0]] == list(header.gcps)
        rpcs = dataset.tags(ns="RPC")
        for key, text in (header.rpcs or {}).items():
            assert [float(x) for x in rpcs[key].split()] == [float(x) for x in text.split()]
        assert dataset.tags().get("AREA_OR_POINT", "Area") == ("Point" if header.point else "Area")
        assert (dataset.scales, dataset.offsets) == ((header.scale or 1.0,), (header.offset or 0.0,))
        assert dataset.units == ("metre" if what == "compound" else header.unit,)
        assert dataset.descriptions == (header.description,)
        assert dataset.nodata == 255
        for got, wanted in ((dataset.tags(), header.tags), (dataset.tags(1), header.band_tags)):
            assert normal_texts(wanted).items() <= normal_texts(got).items()
        if header.colormap:
            found = dataset.colormap(1)
            assert {value: found[value][:3] for value in header.colormap} == {
                value: colour[:3] for value, colour in header.colormap.items()
            }
    assert validate_cog(path) == []


def test_colours_are_in_overviews_too(tmp_path):
    header = HEADERS["colormap"]
    write_cog(tmp_path / "a.tif", noise("uint16", (600, 600)), header=header, kind="classes")
    with rasterio.open(tmp_path / "a.tif", overview_level=0) as dataset:
        assert dataset.colormap(1)[3][:3] == (10, 200, 30)
        assert dataset.colorinterp == (rasterio.enums.ColorInterp.palette,)


@pytest.mark.parametrize(
    ("dtype", "nodata"),
    [
        ("uint64", 2**64 - 1),
        ("int64", -(2**63)),
        ("int64", 2**53 + 1),
        ("float32", -3.4028234663852886e38),
        ("float32", -9999.1),
        ("float64", -1.7976931348623157e308),
        ("float32", float("inf")),
        ("int8", -128),
        ("uint8", 0.0),
    ],
)
def test_any_nodata_value(tmp_path, dtype, nodata):
    pixels = noise(dtype, (3, 4))
    pixels[0, 0] = nodata
    write_cog(tmp_path / "a.tif", pixels, nodata)
    with rasterio.open(tmp_path / "a.tif") as dataset:
        assert dataset.read_masks(1).tolist() == np.where(pixels == pixels[0, 0], 0, 255).tolist()
        assert same_bits(dataset.read(1), pixels)
    assert read_index(tmp_path / "a.tif").images[0].fill == pixels[0, 0]


@pytest.mark.parametrize(
    ("dtype", "nodata"), [("uint8", -1), ("uint8", 256), ("int16", 0.5), ("int32", float("nan")), ("float32", 1e39)]
)
def test_nodata_that_the_type_cannot_hold_is_refused(dtype, nodata):
    with pytest.raises(SceneError, match=dtype) as error:
        Layer((5, 5), dtype, nodata)
    assert error.value.reason == "nodata"


@pytest.mark.parametrize(
    "changed",
    [{"dtype": "complex64"}, {"kind": "cubic"}, {"shape": (0, 5)}, {"shape": (5, 1 << 31)}, {"dtype": "float16"}],
)
def test_layers_that_cannot_be(changed):
    with pytest.raises(ValueError, match=r"layer|COG"):
        Layer(**{"shape": (5, 5), "dtype": "uint8"} | changed)


def test_a_header_that_cannot_be_written_is_said_at_once(tmp_path):
    with pytest.raises(SceneError, match=r"a\.tif") as error:
        CogWriter(tmp_path / "a.tif", Layer((5, 5), "uint8"), Header(crs="PROJCS[nonsense"))
    assert error.value.reason == "header"


def test_metadata_that_would_be_lost_fail(tmp_path):
    header = replace(PLACED, colormap={1: (1, 2, 3, 255)})
    with pytest.raises(SceneError, match="colour of 1") as error:
        write_cog(tmp_path / "a.tif", noise("int16", (5, 5)), header=header)
    assert error.value.reason in ("header", "header_lost")
    assert os.listdir(tmp_path) == []


def test_read_header_gives_what_was_written(tmp_path):
    header = replace(HEADERS["unicode"], scale=0.5, offset=1.0)
    write_cog(tmp_path / "a.tif", noise("uint8", (5, 5)), header=header)
    with rasterio.open(tmp_path / "a.tif") as dataset:
        found = headers.read_header(dataset)
    assert found.tags.pop("COGMILL_PIXEL_DIGEST")
    assert CRS.from_wkt(found.crs) == CRS.from_wkt(header.crs)
    assert replace(found, crs=None) == replace(header, crs=None)


# -- windows in the wrong place


@pytest.mark.parametrize(
    ("window", "shape", "why"),
    [
        (Window(512, 0, 512, 1500), None, "next window"),
        (Window(0, 512, 512, 988), None, "next window"),
        (Window(0, 0, 100, 1500), None, "whole tiles"),
        (Window(0, 0, 512, 700), None, "whole tiles"),
        (Window(0, 0, 1024, 512), None, "neither"),
        (Window(0, 0, 512, 1500), (512, 1499), "pixels"),
        (Window(0, 0, 512, 2048), None, "whole tiles"),
    ],
)
def test_windows_in_the_wrong_place(tmp_path, window, shape, why):
    writer = CogWriter(tmp_path / "a.tif", Layer((1600, 1500), "uint8"), PLACED)
    with writer, pytest.raises(ValueError, match=why):
        writer.write(window, np.zeros(shape or (window.rows, window.cols), np.uint8))


def test_pixels_and_masks_that_do_not_fit_the_layer(tmp_path):
    window, pixels = Window(0, 0, 10, 10), np.zeros((10, 10), np.uint8)
    with CogWriter(tmp_path / "a.tif", Layer((10, 10), "uint8"), PLACED) as writer:
        with pytest.raises(ValueError, match="int16"):
            writer.write(window, pixels.astype(np.int16))
        with pytest.raises(ValueError, match="mask"):
            writer.write(window, pixels, pixels)
        with pytest.raises(ValueError, match=r"tile \(0, 0\) of level 0"):
            writer.finish()
    writer = CogWriter(tmp_path / "a.tif", Layer((10, 10), "uint8", mask=True), PLACED)
    with writer, pytest.raises(ValueError, match="mask"):
        writer.write(window, pixels)
    assert os.listdir(tmp_path) == []


def test_tiles_twice_or_without_digest(tmp_path):
    with CogWriter(tmp_path / "a.tif", Layer((10, 10), "uint8"), PLACED) as writer:
        with pytest.raises(ValueError, match="digest None"):
            writer.put_tile(0, (0, 0), b"abcdefgh")
        writer.put_tile(0, (0, 0), None)
        with pytest.raises(ValueError, match="twice"):
            writer.put_tile(0, (0, 0), None)


# -- nothing but whole files


def test_memory_is_bounded_by_the_spool(tmp_path, monkeypatch):
    spools = []
    spool_class = writers._Spool
    monkeypatch.setattr(writers, "_Spool", lambda *args: spools.append(spool_class(*args)) or spools[-1])
    held = []
    put_tile = CogWriter.put_tile

    def watched(self, *args, **options):
        put_tile(self, *args, **options)
        held.append(sum(map(len, spools[0]._memory.values())))
        assert os.listdir(tmp_path) == []  # the spool file has no name

    monkeypatch.setattr(CogWriter, "put_tile", watched)
    pixels = noise("uint8", (2048, 2048))
    info = write_cog(tmp_path / "a.tif", pixels, spool_bytes=1 << 20)
    assert info.size > 5 << 20
    assert max(held) <= 1 << 20
    assert held[-1] == 0
    with rasterio.open(tmp_path / "a.tif") as dataset:
        assert same_bits(dataset.read(1), pixels)


class DeliberateError(Exception):
    pass


def fail(*_, **__):
    raise DeliberateError


@pytest.mark.parametrize(
    ("where", "what"),
    [
        (cpu, "encode_tile"),
        (writers, "reduce2"),
        (writers._Spool, "append"),
        (writers._Spool, "read"),
        (layouts, "lay_out"),
        (writers, "compare_index"),
        (writers, "check_tile_rows"),
        (headers, "lost"),
        (writers, "_sync"),
        (os, "replace"),
    ],
)
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("there", [False, True])
def test_an_exception_anywhere_leaves_nothing(tmp_path, monkeypatch, where, what, threads, there):
    if there:
        (tmp_path / "a.tif").write_bytes(b"yesterday's")
    monkeypatch.setattr(where, what, fail)
    with pytest.raises(DeliberateError):
        write_cog(tmp_path / "a.tif", noise("uint8", (1100, 1300)), threads=threads, spool_bytes=1000)
    monkeypatch.undo()
    assert os.listdir(tmp_path) == (["a.tif"] if there else [])
    assert not there or (tmp_path / "a.tif").read_bytes() == b"yesterday's"


def test_an_exception_of_the_caller_leaves_nothing(tmp_path):
    writer = CogWriter(tmp_path / "a.tif", Layer((1100, 600), "uint8"), PLACED, spool_bytes=0, threads=2)
    with pytest.raises(DeliberateError), writer:
        writer.write(Window(0, 0, 512, 600), noise("uint8", (512, 600)))
        raise DeliberateError
    assert os.listdir(tmp_path) == []
    with pytest.raises(ValueError, match="closed"):
        writer.write(Window(512, 0, 512, 600), noise("uint8", (512, 600)))


@pytest.mark.parametrize("moment", ["spool", "file", "sync"])
def test_a_full_disk_can_be_tried_again(tmp_path, monkeypatch, moment):
    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    targets = {
        "spool": (writers.tempfile, "TemporaryFile"),
        "file": (writers.os, "open"),
        "sync": (writers.os, "fsync"),
    }
    monkeypatch.setattr(*targets[moment], full)
    with pytest.raises(RetryableError, match=r"a\.tif.*No space left") as error:
        write_cog(tmp_path / "a.tif", noise("uint8", (700, 700)), spool_bytes=0 if moment == "spool" else 1 << 28)
    monkeypatch.undo()
    assert error.value.reason == "io_error"
    assert os.listdir(tmp_path) == []


def test_a_real_full_disk(tmp_path):
    """A file-size limit stands for the disk: the process that writes gets an error, not a half file."""
    import resource
    import signal

    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1]))
        for spool in (0, 1 << 28):
            with pytest.raises(RetryableError, match=r"a\.tif"):
                write_cog(tmp_path / "a.tif", noise("uint16", (1100, 1100)), spool_bytes=spool)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    assert os.listdir(tmp_path) == []


def test_a_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(RetryableError, match="file"):
        CogWriter(tmp_path / "file" / "a.tif", Layer((5, 5), "uint8"), PLACED)


@pytest.mark.parametrize("damage", ["frame", "pixels"])
def test_the_check_finds_an_encoder_that_lies(tmp_path, damage):
    """A wrong frame, or a right frame of wrong pixels, as a GPU could give."""
    pixels = noise("uint8", (500, 500))
    tile = np.zeros((512, 512), np.uint8)
    tile[:500, :500] = pixels
    digest = cpu.pixel_digest_tile(tile)
    tile[3, 3] ^= 1
    data = cpu.encode_tile(tile, 2, 3)
    if damage == "frame":
        data = data[:-2] + b"\0\0"
        with pytest.raises(DamagedTileError):
            cpu.decode_tile(data[:-4], "uint8", predictor=2)
    with CogWriter(tmp_path / "a.tif", Layer((500, 500), "uint8"), PLACED) as writer:
        writer.put_tile(0, (0, 0), data, digest)
        with pytest.raises(RetryableError, match=r"a\.tif.*tile \(row 0, column 0\)") as error:
            writer.finish()
    assert error.value.reason == "check_failed"
    assert os.listdir(tmp_path) == []


def test_the_check_reads_the_file_and_not_its_memory(tmp_path, monkeypatch):
    write_file = CogWriter._write_file

    def disturbed(self, path, *args):
        checksum = write_file(self, path, *args)
        with open(path, "r+b") as file:
            file.seek(-300, os.SEEK_END)
            file.write(b"!")
        return checksum

    monkeypatch.setattr(CogWriter, "_write_file", disturbed)
    with pytest.raises(RetryableError, match="checksum"):
        write_cog(tmp_path / "a.tif", noise("uint8", (300, 300)))
    assert os.listdir(tmp_path) == []


def test_files_get_the_users_permissions(tmp_path):
    umask = os.umask(0o027)
    try:
        write_cog(tmp_path / "deep" / "er" / "a.tif", noise("uint8", (5, 5)))
    finally:
        os.umask(umask)
    assert (tmp_path / "deep" / "er" / "a.tif").stat().st_mode & 0o777 == 0o640


@pytest.mark.parametrize("name", ["a b.tif", "[2021]{07}.tif", "scène_日本.tif", "a#b?c&d.tif", "a%20b.tif"])
def test_any_file_name(tmp_path, name):
    pixels = noise("uint8", (600, 600))
    write_cog(tmp_path / name, pixels)
    assert os.listdir(tmp_path) == [name]
    with CogReader(tmp_path / name) as reader:
        assert same_bits(reader.read(Window(0, 0, 600, 600))[0], pixels)


def test_a_relative_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert write_cog("a.tif", noise("uint8", (5, 5))).path.exists()


@pytest.mark.slow
def test_a_sparse_raster_of_40000_pixels_a_side_needs_little_memory(tmp_path):
    """Two pixels of a wide product; a child process, so that the limit is its own."""
    import subprocess
    import sys

    code = f"""
import resource
resource.setrlimit(resource.RLIMIT_AS, (1536 << 20, 1536 << 20))
import numpy as np
from cogmill.cog.writer import CogWriter, Header, Layer
from cogmill.grids import windows
pixels = np.full((512, 4096), np.nan, np.float32)
with CogWriter({str(tmp_path / "a.tif")!r}, Layer((40000, 40000), "float32", np.nan), Header()) as writer:
    for number, window in enumerate(windows((40000, 40000), 1, 8)):
        pixels[0, 0] = 1 if number in (3, 500) else np.nan
        writer.write(window, pixels[: window.rows, : window.cols])
    print(writer.finish().tiles)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout.split()) == (0, ["14"]), done.stderr
    assert_valid_cog(tmp_path / "a.tif", 8)


def test_all_windows_of_grids_are_taken(tmp_path):
    pixels = noise("uint8", (1100, 1300))
    for rows, cols in ((1, 1), (1, 2), (1, 3), (2, None), (3, None), (9, None)):
        wanted = list(windows(pixels.shape, rows, cols))
        write_cog(tmp_path / "a.tif", pixels, tile_rows=rows, tile_cols=cols)
        assert wanted[0].row == 0
        with rasterio.open(tmp_path / "a.tif") as dataset:
            assert same_bits(dataset.read(1), pixels)


class RangeHandler(http.server.BaseHTTPRequestHandler):
    """A web server of one file, with the byte ranges that readers of COGs ask for."""

    def do_HEAD(self):
        self.answer(body=False)

    def do_GET(self):
        self.answer(body=True)

    def answer(self, body):
        data = self.server.data
        found = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        first, last = (int(found[1]), int(found[2] or len(data) - 1)) if found else (0, len(data) - 1)
        part = data[first : last + 1]
        self.send_response(206 if found else 200)
        self.send_header("Accept-Ranges", "bytes")
        self.send_header("Content-Length", str(len(part)))
        if found:
            self.send_header("Content-Range", f"bytes {first}-{first + len(part) - 1}/{len(data)}")
        self.end_headers()
        if body:
            self.server.asked.append(len(part))
            self.wfile.write(part)

    def log_message(self, *_):
        pass


@pytest.fixture
def web():
    """(url, server) of a file that `server.data` gives; `server.asked` are the sizes of what was sent."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), RangeHandler)
    server.data, server.asked = b"", []
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"/vsicurl/http://127.0.0.1:{server.server_address[1]}/a.tif", server
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.mark.parametrize("empty", ["nothing", "masks", "images", "both"])
def test_gdal_reads_over_http_what_the_ghost_area_promises(tmp_path, web, empty):
    """There GDAL uses leaders, and the mask that lies behind its image tile."""
    pixels = noise("uint16", (2600, 1700))
    valid = np.where(noise("uint8", pixels.shape, 1) > 90, 255, 0).astype("u1")
    if empty in ("masks", "both"):
        valid[512:1536, 512:1536] = 0
    if empty in ("images", "both"):
        pixels[512:1536, 512:1536] = 0
    info = write_cog(tmp_path / "a.tif", pixels, 0, valid)
    url, server = web
    server.data = (tmp_path / "a.tif").read_bytes()
    options = {"GDAL_DISABLE_READDIR_ON_OPEN": "EMPTY_DIR", "GDAL_HTTP_PROXY": "", "CPL_VSIL_CURL_NON_CACHED": url}
    with rasterio.Env(**options), rasterio.open(url) as dataset:
        window = rasterio.windows.Window(500, 700, 900, 900)
        assert same_bits(dataset.read(1, window=window), pixels[700:1600, 500:1400])
        assert np.array_equal(dataset.read_masks(1, window=window), valid[700:1600, 500:1400])
        assert same_bits(dataset.read(1), pixels)
        assert np.array_equal(dataset.read_masks(1), valid)
    assert max(server.asked) < info.size


def test_finish_is_heard_while_it_works(tmp_path, monkeypatch):
    monkeypatch.setattr(writers, "SYNC_BYTES", 1 << 16)
    heard = []
    pixels = noise("uint16", (1024, 1024))
    with CogWriter(tmp_path / "a.tif", Layer((1024, 1024), "uint16"), PLACED, beat=lambda: heard.append(1)) as writer:
        writer.write(Window(0, 0, 1024, 1024), pixels)
        info = writer.finish()
    assert len(heard) >= 4
    assert same_bits(rasterio.open(info.path).read(1), pixels)

"""Reading tiles: the pixels that GDAL reads, and no pixel of a damaged tile."""

import os
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import rasterio
import xxhash
from cog_tools import PLACED, noise, same_bits, write_cog
from hypothesis import given, settings
from hypothesis import strategies as st
from rasterio.shutil import copy

from cogmill.codecs import cpu
from cogmill.cog import reader as readers
from cogmill.cog.index import read_index
from cogmill.cog.reader import CogReader, index_tiles
from cogmill.errors import DamagedTileError, RetryableError, SceneError
from cogmill.grids import Window

TILED = {"tiled": True, "blockxsize": 512, "blockysize": 512, "compress": "ZSTD"}


def write_gdal(path, pixels, **options):
    profile = {"driver": "GTiff", "count": len(pixels), "height": pixels.shape[1], "width": pixels.shape[2]}
    place = {"crs": PLACED.crs, "transform": rasterio.Affine(*PLACED.transform)}
    with rasterio.open(path, "w", dtype=pixels.dtype, **profile | place | TILED | options) as dataset:
        dataset.write(pixels)
    return path


def whole(path, band=1, **options):
    with CogReader(path, band, **options) as reader:
        return reader.read(Window(0, 0, *reader.shape))


@pytest.fixture(scope="module")
def masked(tmp_path_factory):
    """A COG of ours with overviews, a mask and an absent tile."""
    path = tmp_path_factory.mktemp("reader") / "a.tif"
    pixels = noise("int16", (1300, 1700))
    pixels[512:1024, 512:1024] = -7
    valid = np.where(noise("uint8", pixels.shape, 1) > 100, 255, 0).astype("u1")
    info = write_cog(path, pixels, nodata=-7, valid=valid)
    return path, pixels, valid, info


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_any_window_of_any_level_equals_gdals(masked, data):
    path = masked[0]
    threads = data.draw(st.sampled_from([1, 3]))
    with CogReader(path, threads=threads) as reader:
        level = data.draw(st.integers(0, len(reader.index.images) - 1))
        rows, cols = reader.index.images[level].shape
        row, col = data.draw(st.integers(0, rows - 1)), data.draw(st.integers(0, cols - 1))
        window = Window(row, col, data.draw(st.integers(1, rows - row)), data.draw(st.integers(1, cols - col)))
        pixels, valid = reader.read(window, level)
    options = {"overview_level": level - 1} if level else {}
    with rasterio.open(path, **options) as dataset:
        part = rasterio.windows.Window(col, row, window.cols, window.rows)
        assert same_bits(pixels, dataset.read(1, window=part))
        assert same_bits(valid, dataset.read_masks(1, window=part))


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "int32", "uint64", "float32", "float64"])
@pytest.mark.parametrize("endian", ["LITTLE", "BIG"])
@pytest.mark.parametrize("predictor", [1, 2, 3])
def test_gdals_tiles_of_all_kinds(tmp_path, dtype, endian, predictor):
    if predictor == 3 and "float" not in dtype:
        return
    bands = np.stack([noise(dtype, (513, 700), seed) for seed in range(2)])
    options = {"predictor": predictor, "ENDIANNESS": endian, "interleave": "band", "BIGTIFF": "YES"}
    path = write_gdal(tmp_path / "a.tif", bands, **options)
    for band in (1, 2):
        pixels, valid = whole(path, band)
        assert same_bits(pixels, bands[band - 1])
        assert valid is None


def test_other_tile_sizes(tmp_path):
    bands = noise("uint16", (1, 300, 700))
    path = write_gdal(tmp_path / "a.tif", bands, predictor=2, blockxsize=128, blockysize=64)
    assert same_bits(whole(path)[0], bands[0])


@pytest.mark.parametrize(
    ("dtype", "nodata"), [("int16", -5), ("float32", np.nan), ("float64", -1e300), ("uint8", None)]
)
def test_absent_tiles_are_nodata_as_in_gdal(tmp_path, dtype, nodata):
    options = TILED | {"driver": "GTiff", "count": 1, "height": 1024, "width": 1024, "dtype": dtype, "nodata": nodata}
    with rasterio.open(
        tmp_path / "a.tif", "w", SPARSE_OK=True, transform=rasterio.Affine(*PLACED.transform), **options
    ) as d:
        d.write(noise(dtype, (512, 512)), 1, window=rasterio.windows.Window(512, 0, 512, 512))
    assert (read_index(tmp_path / "a.tif").images[0].counts == 0).sum() == 3
    with rasterio.open(tmp_path / "a.tif") as dataset:
        assert same_bits(whole(tmp_path / "a.tif")[0], dataset.read(1))


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"compress": "DEFLATE"}, "compression is 8"),
        ({"interleave": "pixel"}, "interleaves 2 bands"),
        ({"tiled": False, "blockysize": 8}, "strips"),
    ],
)
def test_what_cannot_be_read_says_why(tmp_path, options, why):
    path = write_gdal(tmp_path / "a.tif", noise("uint16", (2, 600, 700)), **options)
    with pytest.raises(SceneError, match=why) as error:
        CogReader(path)
    assert error.value.reason == "not_conforming"
    with pytest.raises(SceneError, match=why):
        index_tiles(path)


def test_gdals_deflated_masks_are_refused(tmp_path):
    with rasterio.Env(GDAL_TIFF_INTERNAL_MASK=True):
        path = write_gdal(tmp_path / "a.tif", noise("uint8", (1, 600, 700)))
        with rasterio.open(path, "r+") as dataset:
            dataset.write_mask(np.eye(600, 700, dtype=bool))
        copy(path, tmp_path / "cog.tif", driver="COG", compress="ZSTD", blocksize=512)
    with pytest.raises(SceneError, match="compression is 8"):
        CogReader(tmp_path / "cog.tif")


def test_huge_tiles_are_refused_before_they_are_allocated(tmp_path):
    path = write_gdal(
        tmp_path / "a.tif", noise("uint8", (1, 100, 100)), SPARSE_OK=True, blockxsize=8192, blockysize=4096
    )
    with pytest.raises(SceneError, match="16 MiB"):
        CogReader(path)


def test_windows_outside_are_refused(masked):
    with CogReader(masked[0]) as reader:
        with pytest.raises(ValueError, match="outside"):
            reader.read(Window(1299, 0, 2, 1))
        with pytest.raises(ValueError, match="outside"):
            reader.read(Window(0, 0, 1300, 1700), level=1)


# -- damaged tiles


def flip(path, offset):
    data = bytearray(path.read_bytes())
    data[offset] ^= 1
    path.write_bytes(data)


@pytest.fixture
def cog(tmp_path):
    """(path, CogInfo) of a COG of 2 x 2 tiles with a mask."""
    path = tmp_path / "scene.tif"
    pixels = noise("uint16", (600, 1000))
    return path, write_cog(path, pixels, valid=np.where(pixels > 4000, 255, 0).astype("u1"))


@pytest.fixture
def decoded(monkeypatch):
    """Compressed bytes of every tile that reaches the decoder."""
    seen = []
    decode = readers.decode
    monkeypatch.setattr(readers, "decode", lambda image, data: seen.append(bytes(data)) or decode(image, data))
    return seen


@pytest.mark.parametrize("source", ["file", "record"])
@pytest.mark.parametrize("threads", [1, 2])
def test_a_flipped_bit_is_found_before_decoding(cog, decoded, source, threads):
    path, info = cog
    image = read_index(path).images[0]
    offset, count = int(image.offsets[1, 0]), int(image.counts[1, 0])
    flip(path, offset + count // 2)
    bad = path.read_bytes()[offset : offset + count]
    given_checksums = {"checksums": info.checksums.ravel()} if source == "record" else {}
    with CogReader(path, threads=threads, **given_checksums) as reader:
        with pytest.raises(
            DamagedTileError, match=rf"scene\.tif: tile \(row 1, column 0\) of {count} bytes at byte {offset}"
        ):
            reader.read(Window(0, 0, 600, 1000))
        assert bad not in decoded
        reader.read(Window(0, 0, 512, 1000))  # the other tiles are as good as ever


def test_a_flipped_bit_of_a_mask(cog):
    path, info = cog
    mask = read_index(path).masks[0]
    flip(path, int(mask.offsets[0, 1]) + 9)
    with pytest.raises(DamagedTileError, match=r"mask tile \(row 0, column 1\)"):
        whole(path, checksums=info.checksums, mask_checksums=info.mask_checksums)


def test_the_records_checksums_count_more_than_the_files(cog):
    path, info = cog
    wrong = info.checksums.copy()
    wrong[0, 1] ^= 1
    with pytest.raises(DamagedTileError, match=r"row 0, column 1.*checksum"):
        whole(path, checksums=wrong)


def test_checksums_of_another_file_are_said(cog):
    with pytest.raises(SceneError, match="4 tiles where its record has checksums of 3") as error:
        CogReader(cog[0], checksums=cog[1].checksums.ravel()[:3])
    assert error.value.reason == "changed"


def test_a_tile_that_comes_wrong_once_is_read_again(cog, monkeypatch):
    path, _ = cog
    calls = []

    def flaky(fd, size, offset):
        data = bytearray(os.pread(fd, size, offset))
        calls.append(size)
        if len(calls) == 1:
            data[20] ^= 255
        return bytes(data)

    monkeypatch.setattr(readers, "pread", flaky)
    with rasterio.open(path) as dataset:
        assert same_bits(whole(path)[0], dataset.read(1))
    assert len(calls) > 1


def test_without_checksums_libzstd_decides(tmp_path):
    path = write_gdal(tmp_path / "a.tif", noise("uint16", (1, 600, 700)))
    image = read_index(path).images[0]
    flip(path, int(image.offsets[1, 1]))
    with pytest.raises(DamagedTileError, match=r"row 1, column 1.*libzstd"):
        whole(path)
    with pytest.raises(DamagedTileError, match=r"row 1, column 1.*libzstd"):
        index_tiles(path)


def test_a_file_cut_short_after_it_was_indexed(cog):
    path, _ = cog
    with CogReader(path) as reader:
        os.truncate(path, path.stat().st_size - 100)
        with pytest.raises(DamagedTileError, match=r"row 1, column 1.*ends"):
            reader.read(Window(0, 0, 600, 1000))


def test_faults_of_the_system_can_be_tried_again(cog, monkeypatch):
    def broken(*_):
        raise OSError(5, "Input/output error")

    with CogReader(cog[0]) as reader:
        monkeypatch.setattr(readers, "pread", broken)
        with pytest.raises(RetryableError, match=r"scene\.tif.*Input/output") as error:
            reader.read(Window(0, 0, 1, 1))
    assert error.value.reason == "io_error"


# -- how it reads


def test_neighbours_are_read_together(cog, monkeypatch):
    calls = []
    monkeypatch.setattr(readers, "pread", lambda *call: calls.append(call) or os.pread(*call))
    with CogReader(cog[0]) as reader:
        reader.read(Window(0, 0, 600, 1000))
        assert len(calls) == 1
        assert reader.bytes_read == calls[0][1]
        assert min(reader.seconds.values()) > 0
        image, mask = reader.index.images[0], reader.index.masks[0]
        used = int(image.counts.sum() + mask.counts.sum())
        assert used < reader.bytes_read < used + 200
        reader.read(Window(0, 0, 1, 1))
        assert calls[1][1] < used / 2


def test_requests_have_a_limit(cog, monkeypatch):
    calls = []
    monkeypatch.setattr(readers, "pread", lambda *call: calls.append(call) or os.pread(*call))
    monkeypatch.setattr(readers, "REQUEST_BYTES", 1000)
    with CogReader(cog[0]) as reader, rasterio.open(cog[0]) as dataset:
        assert same_bits(reader.read(Window(0, 0, 600, 1000))[0], dataset.read(1))
    assert len(calls) > 4


@pytest.mark.parametrize("cache_bytes", [1, 2_000_000, 1 << 30])
def test_windows_that_overlap_are_decoded_once_where_memory_allows(masked, decoded, cache_bytes):
    path, pixels, valid, _ = masked
    cuts = [Window(row, col, 600, 700) for row in (0, 350, 700) for col in (0, 500, 1000)]
    with CogReader(path, cache_bytes=cache_bytes) as reader, ThreadPoolExecutor(4) as pool:
        for window, (part, fit) in zip(cuts, pool.map(reader.read, cuts), strict=True):
            rows, cols = slice(window.row, window.row + 600), slice(window.col, window.col + 700)
            assert same_bits(part, pixels[rows, cols]) and same_bits(fit, valid[rows, cols])
        kept = sum(future.result().nbytes for future in reader._cache._tiles.values())
    assert kept <= max(cache_bytes, 2 * 512 * 512 * 2)
    # of 12 tiles one is absent; with their masks there are 23 to decode
    assert len(decoded) == 23 if cache_bytes == 1 << 30 else len(decoded) > 23


def test_a_damaged_tile_in_the_cache_fails_all_who_want_it_and_is_tried_again(cog):
    path, _ = cog
    offset = int(read_index(path).images[0].offsets[1, 1]) + 9
    flip(path, offset)
    with CogReader(path, cache_bytes=1 << 30) as reader, ThreadPoolExecutor(4) as pool:
        whole_raster = Window(0, 0, *reader.shape)
        for future in [pool.submit(reader.read, whole_raster) for _ in range(8)]:
            with pytest.raises(DamagedTileError, match="damaged"):
                future.result()
        flip(path, offset)
        assert reader.read(whole_raster)[0].shape == reader.shape


def test_closing_twice(cog):
    reader = CogReader(cog[0], threads=2)
    reader.close()
    reader.close()


# -- files of others


def test_checksums_that_gdal_left_behind_are_not_held_against_a_file(tmp_path):
    pixels = np.full((600, 700), 3, np.uint16)
    write_cog(tmp_path / "a.tif", pixels)
    pixels = noise("uint16", (600, 700))
    with rasterio.open(tmp_path / "a.tif", "r+", IGNORE_COG_LAYOUT_BREAK=True) as dataset:
        dataset.write(pixels, 1)
    assert read_index(tmp_path / "a.tif").images[0].checksums is None
    assert same_bits(whole(tmp_path / "a.tif")[0], pixels)
    checksums, _ = index_tiles(tmp_path / "a.tif")
    assert same_bits(whole(tmp_path / "a.tif", checksums=checksums)[0], pixels)


def test_overviews_of_any_kind_do_not_keep_the_full_resolution_from_being_read(tmp_path):
    path = write_gdal(tmp_path / "a.tif", noise("uint8", (1, 1100, 1300)), predictor=2)
    with rasterio.Env(COMPRESS_OVERVIEW="DEFLATE"), rasterio.open(path, "r+") as dataset:
        dataset.build_overviews([2], rasterio.enums.Resampling.nearest)
    index_tiles(path)
    with CogReader(path) as reader, rasterio.open(path) as dataset:
        assert same_bits(reader.read(Window(0, 0, 1100, 1300))[0], dataset.read(1))
        with pytest.raises(SceneError, match="compression is 8"):
            reader.read(Window(0, 0, 5, 5), level=1)


@pytest.mark.parametrize("threads", [1, 3])
def test_index_tiles(tmp_path, threads):
    bands = np.stack([noise("float32", (600, 1100), seed) for seed in range(2)])
    path = write_gdal(tmp_path / "a.tif", bands, predictor=3, interleave="band")
    checksums, digest = index_tiles(path, 2, threads)
    image = read_index(path, 2).images[0]
    data = path.read_bytes()
    digests = np.zeros((2, 3), np.uint64)
    for row in range(2):
        for col in range(3):
            offset, count = int(image.offsets[row, col]), int(image.counts[row, col])
            tile = data[offset : offset + count]
            assert int(checksums[row, col]) == xxhash.xxh3_64_intdigest(tile)
            digests[row, col] = cpu.pixel_digest_tile(cpu.decode_tile(tile, "float32", (512, 512), 3))
    assert digest == cpu.pixel_digest(digests)
    assert same_bits(whole(path, 2, checksums=checksums)[0], bands[1])


def test_index_tiles_of_our_own_file_gives_its_digest(tmp_path):
    pixels = noise("uint16", (1100, 600))
    pixels[512:1024] = 3
    info = write_cog(tmp_path / "a.tif", pixels, nodata=3)
    checksums, digest = index_tiles(tmp_path / "a.tif")
    assert np.array_equal(checksums, info.checksums)
    assert digest == info.pixel_digest[0]
    assert checksums[1, 0] == 0

"""The strict check finds what is wrong with a COG."""

import struct

import numpy as np
import pytest
import rasterio
from cog_tools import PLACED, noise, write_cog
from rasterio.shutil import copy

from cogmill.cog.index import read_index
from cogmill.cog.validate import validate_cog


@pytest.fixture
def cog(tmp_path):
    path = tmp_path / "a.tif"
    pixels = noise("uint16", (1100, 1300))
    write_cog(path, pixels, nodata=0, valid=np.where(pixels > 4000, 255, 0).astype("u1"))
    return path


def patch(path, offset, data):
    with open(path, "r+b") as file:
        file.seek(offset)
        file.write(data)


def test_our_files_have_no_problems(cog):
    assert validate_cog(cog) == []


@pytest.mark.parametrize("which", ["image", "mask"])
def test_framing_and_checksums(cog, which):
    index = read_index(cog)
    image = index.images[1] if which == "image" else index.masks[0]
    offset, count = int(image.offsets[0, 1]), int(image.counts[0, 1])
    original = cog.read_bytes()
    for at, word in ((offset - 4, "leader"), (offset + count, "trailer"), (offset + count // 2, "checksum")):
        cog.write_bytes(original)
        patch(cog, at, bytes([original[at] ^ 1]))
        problems = validate_cog(cog)
        assert len(problems) == 1
        assert word in problems[0]
        assert "(row 0, column 1)" in problems[0]
        assert which in problems[0]


def test_ghost_area(cog):
    at = cog.read_bytes().index(b"KNOWN_INCOMPATIBLE_EDITION=NO\n ")
    patch(cog, at, b"KNOWN_INCOMPATIBLE_EDITION=YES\n")
    assert validate_cog(cog) == ["GDAL's structural metadata says KNOWN_INCOMPATIBLE_EDITION=YES, not NO"]


def test_a_file_that_gdal_changed(cog):
    """Writing through GDAL breaks the layout; the check says so."""
    with rasterio.open(cog, "r+", IGNORE_COG_LAYOUT_BREAK=True) as dataset:
        dataset.write(noise("uint16", (1100, 1300), 5), 1)
    problems = validate_cog(cog)
    assert any("KNOWN_INCOMPATIBLE_EDITION" in problem for problem in problems)
    assert any("order" in problem for problem in problems)


def test_sidecars(cog):
    for end in (".aux.xml", ".msk", ".ovr"):
        cog.with_name(cog.name + end).write_bytes(b"")
    assert len([problem for problem in validate_cog(cog) if "sidecar" in problem]) == 3


def test_overviews_lack(tmp_path):
    write_cog(tmp_path / "a.tif", noise("uint8", (600, 600)), overviews=False)
    assert "does not fit one tile" in validate_cog(tmp_path / "a.tif")[0]
    write_cog(tmp_path / "b.tif", noise("uint8", (500, 512)), overviews=False)
    assert validate_cog(tmp_path / "b.tif") == []


def test_gdals_floored_overviews_are_told(tmp_path):
    write_cog(tmp_path / "a.tif", noise("uint8", (1100, 1301)))
    copy(tmp_path / "a.tif", tmp_path / "b.tif", driver="COG", compress="ZSTD", blocksize=512, predictor=2)
    assert validate_cog(tmp_path / "b.tif") == []
    copy(
        tmp_path / "a.tif",
        tmp_path / "c.tif",
        driver="COG",
        compress="ZSTD",
        blocksize=512,
        OVERVIEWS="IGNORE_EXISTING",
    )
    assert "an overview has 550 x 650 pixels, not 550 x 651" in validate_cog(tmp_path / "c.tif")


def test_what_is_no_cog(tmp_path):
    path = tmp_path / "a.tif"
    profile = {"driver": "GTiff", "count": 2, "height": 40, "width": 50, "dtype": "uint8", "ENDIANNESS": "BIG"}
    with rasterio.open(path, "w", transform=rasterio.Affine(*PLACED.transform), **profile) as dataset:
        dataset.write(noise("uint8", (2, 40, 50)))
    text = "\n".join(validate_cog(path))
    for word in ("strips", "512 x 512", "2 bands", "big-endian", "LAYOUT"):
        assert word in text
    path.write_bytes(b"no TIFF at all")
    assert "not a TIFF" in validate_cog(path)[0]


def test_images_out_of_order(cog):
    """Tables of the full resolution and of an overview exchanged: tiles of the full resolution come first."""
    data = bytearray(cog.read_bytes())
    index = read_index(cog)
    table = index.images[0].offsets.astype("<u4").tobytes()
    at = data.index(table)
    first, second = struct.unpack_from("<II", data, at)
    struct.pack_into("<II", data, at, second, first)
    cog.write_bytes(data)
    problems = validate_cog(cog)
    assert any("row-major order" in problem for problem in problems)


def test_image_tiles_without_their_mask_tiles(cog):
    data = bytearray(cog.read_bytes())
    counts = read_index(cog).masks[0].counts.astype("<u4").tobytes()
    at = data.index(counts)
    data[at : at + 4] = bytes(4)
    cog.write_bytes(data)
    assert validate_cog(cog) == ["image of 1100 x 1300 pixels: some of its tiles have no mask tile behind them"]

"""Kinds of input that archives hold, made here: each must come into the store and into NDVI as what it is.

What is wanted is known from how a file was made; only of lossy codecs GDAL is asked what a file holds.
"""

import tarfile
import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
import rasterio
import rasterio.shutil
import tifffile
from campaigns import check_ndvi, check_product, run_campaign
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from made import NDVI, ORIGIN, write_raster
from rasterio.control import GroundControlPoint
from rasterio.crs import CRS
from rasterio.drivers import raster_driver_extensions
from rasterio.enums import ColorInterp
from rasterio.transform import Affine

from cogmill.ledger import decode_number

pytestmark = pytest.mark.filterwarnings("ignore::rasterio.errors.NotGeoreferencedWarning")

SHAPE = (70, 90)
SENSORS = {
    "rednir": {"red": {"position": 1}, "nir": {"position": 2}},
    "files": {"red": {}, "nir": {}},
    "variables": {"red": {"names": ["Band1", "1"]}, "nir": {"names": ["Band2", "2"]}},
    "apart": {"red": {"position": 1}, "nir": {"position": 4}},
}


@dataclass
class Kind:
    """An input and what it means: stored numbers of (rows, cols), and where they are valid (None: everywhere)."""

    path: Path | str
    red: np.ndarray
    nir: np.ndarray
    valid_red: np.ndarray | None = None
    valid_nir: np.ndarray | None = None
    row: dict = field(default_factory=dict)
    sensor: str = "rednir"
    radiometry: tuple = ((1.0, 0.0), (1.0, 0.0))
    nodata: tuple = (None, None)
    place: dict = field(default_factory=lambda: {"crs": "EPSG:32631", "transform": ORIGIN})

    def valid(self, role: str) -> np.ndarray:
        """Where a band is valid: by nodata or mask, as given, and not NaN or infinite."""
        pixels, valid = (self.red, self.valid_red) if role == "red" else (self.nir, self.valid_nir)
        return np.isfinite(pixels) & (True if valid is None else valid)


KINDS: dict[str, Callable[[Path], Kind]] = {}


def kind(function: Callable[[Path], Kind]) -> Callable[[Path], Kind]:
    """Enter a function that makes an input of this kind in a folder."""
    KINDS[function.__name__] = function
    return function


def numbers(dtype="uint16", shape=SHAPE, seed=0, bits=None) -> list[np.ndarray]:
    """Random red and NIR with the ends of the dtype's range (of `bits` bits)."""
    random = np.random.default_rng(seed)
    if np.dtype(dtype).kind == "f":
        return [random.normal(3000, 1000, shape).astype(dtype) for _ in range(2)]
    low, high = (0, 2**bits - 1) if bits else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    bands = [random.integers(low, high, shape, dtype, endpoint=True) for _ in range(2)]
    for band in bands:
        band.flat[0], band.flat[-1] = low, high
    return bands


def holes(seed: int, shape=SHAPE) -> np.ndarray:
    """Where pixels are valid: not everywhere, and not where the other seed's are."""
    return np.random.default_rng(seed).random(shape) > 0.2


def gdal(path: Path, bands, **options) -> Kind:
    """A file that GDAL writes."""
    return Kind(write_raster(path, bands, **options), *bands[:2])


# --- dtypes and nodata ----------------------------------------------------------------------------------------------

INTEGERS = ("uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64")
for dtype in (*INTEGERS, "float32", "float64"):
    KINDS[f"dtype_{dtype}"] = lambda folder, dtype=dtype: gdal(folder / "in.tif", numbers(dtype))


@kind
def dtypes_of_each_file(folder):
    bands = [numbers("uint8")[0], numbers("float32")[1]]
    write_raster(folder / "red.tif", bands[:1], nodata=0)
    write_raster(folder / "nir.tif", bands[1:])
    return Kind(folder / "{band}.tif", *bands, valid_red=bands[0] != 0, sensor="files", nodata=(0, None))


def with_nodata(folder: Path, dtype: str, nodata) -> Kind:
    bands, valid = numbers(dtype), [holes(1), holes(2)]
    for band, where in zip(bands, valid, strict=True):
        # the random numbers may hold it too
        band[band == nodata] = 1
        band[~where] = nodata
    made = gdal(folder / "in.tif", bands, nodata=nodata)
    made.valid_red, made.valid_nir = valid
    made.nodata = (nodata, nodata)
    return made


NODATA = {
    "uint8": [0, 255],
    "int8": [-128],
    "uint16": [0, 65535],
    "int16": [-9999],
    "uint32": [2**32 - 1],
    "int32": [-(2**31)],
    "int64": [-9999],
    "uint64": [0],
    "float32": [float("nan"), -9999.0, 0.0, float(np.finfo("f4").min), float(np.float32(0.1))],
    "float64": [float("nan"), float(np.finfo("f8").min)],
}
for dtype, values in NODATA.items():
    for value in values:
        KINDS[f"nodata_{dtype}_{value:g}"] = lambda folder, dtype=dtype, value=value: with_nodata(folder, dtype, value)


def with_text(folder: Path, dtype: str, text: str, value, kept="value") -> Kind:
    """Nodata as other software writes it; `value` None where no pixel can be it, `kept` what the record says."""
    bands, valid = numbers(dtype), [holes(1), holes(2)]
    if value is not None:
        for band, where in zip(bands, valid, strict=True):
            band[band == value] = 1
            band[~where] = value
    tags = [(42113, "s", 0, text, True)]
    tifffile.imwrite(
        folder / "in.tif", np.stack(bands), planarconfig="separate", photometric="minisblack", extratags=tags
    )
    kept = value if kept == "value" else kept
    made = Kind(folder / "in.tif", *bands, nodata=(kept, kept), place={"crs": None, "transform": None})
    if value is not None:
        made.valid_red, made.valid_nir = valid
    return made


TEXTS = {
    "lowest_of_15_digits": ("float32", "-3.40282346638529e+38", float(np.finfo("f4").min)),
    "tenth": ("float32", "0.1", float(np.float32(0.1))),
    "spaces": ("uint8", " 255 ", 255),
    "exponent": ("uint16", "1e3", 1000),
    "out_of_range": ("uint8", "-9999", None),
    "no_integer": ("int16", "0.5", None),
    "nan_of_integers": ("uint16", "nan", None),
    "smallest_of_64_bits": ("int64", str(-(2**63)), -(2**63)),
    # beyond what float64 holds, which is what rasterio tells: kept as a mask
    "largest_of_64_bits": ("uint64", str(2**64 - 1), 2**64 - 1, None),
    "odd_of_64_bits": ("int64", str(2**53 + 1), 2**53 + 1, None),
}
for name, how in TEXTS.items():
    KINDS[f"nodata_text_{name}"] = lambda folder, how=how: with_text(folder, *how)


@kind
def nodata_of_each_file(folder):
    bands = numbers()
    for role, band, nodata in zip(("red", "nir"), bands, (0, 65535), strict=True):
        write_raster(folder / f"{role}.tif", [band], nodata=nodata)
    return Kind(folder / "{band}.tif", *bands, bands[0] != 0, bands[1] != 65535, sensor="files", nodata=(0, 65535))


@kind
def nodata_of_the_sheet(folder):
    made = with_nodata(folder, "uint16", 7)
    write_raster(made.path, [made.red, made.nir], nodata=9)
    made.row = {"nodata": 7}
    return made


@kind
def nodata_of_the_sheet_in_64_bits(folder):
    made = with_text(folder, "uint64", "0", 2**64 - 1)
    made.row = {"nodata": 2**64 - 1}
    return made


@kind
def nan_and_infinity_without_nodata(folder):
    bands = numbers("float32")
    bands[0][3], bands[1][5], bands[1][7], bands[0][9] = np.nan, np.inf, -np.inf, np.nan
    return gdal(folder / "in.tif", bands)


@kind
def nan_beside_nodata(folder):
    made = with_nodata(folder, "float32", -9999.0)
    made.red[4], made.nir[:, 6] = np.nan, np.nan
    write_raster(made.path, [made.red, made.nir], nodata=-9999.0)
    return made


# --- masks ----------------------------------------------------------------------------------------------------------


def with_mask(folder: Path, internal: bool, **options) -> Kind:
    bands, valid = numbers(), holes(1)
    path = write_raster(folder / "in.tif", bands, **options)
    with rasterio.Env(GDAL_TIFF_INTERNAL_MASK=internal), rasterio.open(path, "r+") as file:
        file.write_mask(valid)
    assert (folder / "in.tif.msk").exists() != internal
    return Kind(path, *bands, valid, valid)


KINDS |= {
    "internal_mask": lambda folder: with_mask(folder, True),
    "internal_mask_tiled": lambda folder: with_mask(folder, True, tiled=True, blockxsize=16, blockysize=32),
    "external_mask": lambda folder: with_mask(folder, False),
    "external_mask_of_a_conforming_file": lambda folder: with_mask(folder, False, **CONFORMING),
}


def masks_of_each_file(folder: Path, one: bool) -> Kind:
    bands, valid = numbers(), [holes(1), None if one else holes(2)]
    for role, band, mask in zip(("red", "nir"), bands, valid, strict=True):
        write_raster(folder / f"{role}.tif", [band], mask=mask)
    return Kind(folder / "{band}.tif", *bands, *valid, sensor="files")


KINDS["mask_of_each_file"] = lambda folder: masks_of_each_file(folder, False)
KINDS["mask_of_one_file"] = lambda folder: masks_of_each_file(folder, True)


@kind
def mask_and_nodata(folder):
    made = with_nodata(folder, "uint16", 0)
    clear = holes(3)
    write_raster(made.path, [made.red, made.nir], nodata=0, mask=clear)
    made.valid_red, made.valid_nir = made.valid_red & clear, made.valid_nir & clear
    return made


def with_alpha(folder: Path, applied: bool) -> Kind:
    bands = [*numbers("uint8"), *numbers("uint8", seed=1), *numbers("uint8", seed=2)]
    alpha = np.where(holes(1), 128, 0).astype("uint8")
    stack = [*bands[:3], alpha] if applied else [*bands[:4], alpha]
    path = write_raster(folder / "in.tif", stack, photometric="RGB", alpha="YES" if applied else "NO")
    if not applied:
        with rasterio.open(path, "r+") as file:
            file.colorinterp = [*file.colorinterp[:3], ColorInterp.undefined, ColorInterp.alpha]
    made = Kind(path, bands[0], bands[1 if applied else 3], alpha > 0, alpha > 0)
    made.sensor = "rednir" if applied else "apart"
    return made


KINDS["alpha_of_rgb"] = lambda folder: with_alpha(folder, True)
KINDS["alpha_behind_nir"] = lambda folder: with_alpha(folder, False)


@kind
def mask_of_the_sheet(folder):
    made, clear = gdal(folder / "in.tif", numbers()), holes(1)
    mask = write_raster(folder / "clear.tif", [clear.astype("uint8")])
    made.row, made.valid_red, made.valid_nir = {"mask": mask}, clear, clear
    return made


def with_nodata_of_the_mask(folder: Path, nodata: int) -> Kind:
    """A mask of 0 and 255 whose file declares one of them nodata: 0 is invalid all the same, and nothing else."""
    made, clear = gdal(folder / "in.tif", numbers()), holes(1)
    mask = write_raster(folder / "clear.tif", [np.where(clear, 255, 0).astype("uint8")], nodata=nodata)
    made.row, made.valid_red, made.valid_nir = {"mask": mask}, clear, clear
    return made


KINDS["mask_of_the_sheet_nodata_255"] = lambda folder: with_nodata_of_the_mask(folder, 255)
KINDS["mask_of_the_sheet_nodata_0"] = lambda folder: with_nodata_of_the_mask(folder, 0)


def with_nodata_and_alpha(folder: Path, dtype: str, nodata: int) -> Kind:
    """RGB, NIR and alpha, full or 0, in a file with nodata, which is the alpha's full or 0 too."""
    full = np.iinfo(dtype).max
    bands = [*numbers(dtype), *numbers(dtype, seed=1)]
    clear = holes(1)
    path = write_raster(
        folder / "in.tif", [*bands, np.where(clear, full, 0).astype(dtype)], photometric="RGB", nodata=nodata
    )
    with rasterio.open(path, "r+") as file:
        file.colorinterp = [*file.colorinterp[:3], ColorInterp.undefined, ColorInterp.alpha]
    valid = [clear & (band != nodata) for band in (bands[0], bands[3])]
    return Kind(path, bands[0], bands[3], *valid, sensor="apart", nodata=(nodata, nodata))


for dtype, nodata in (("uint16", 65535), ("uint8", 255), ("uint8", 0), ("uint16", 0)):
    KINDS[f"alpha_and_nodata_{dtype}_{nodata}"] = lambda folder, dtype=dtype, nodata=nodata: with_nodata_and_alpha(
        folder, dtype, nodata
    )


@kind
def nodata_where_all_bands_have_it(folder):
    bands = numbers()
    bands[0][::3], bands[1][:, ::4] = 0, 0
    path = write_raster(folder / "in.tif", bands)
    with rasterio.open(path, "r+") as file:
        file.update_tags(NODATA_VALUES="0 0")
    valid = (bands[0] != 0) | (bands[1] != 0)
    return Kind(path, *bands, valid, valid)


# --- layouts --------------------------------------------------------------------------------------------------------

CONFORMING = {"tiled": True, "blockxsize": 512, "blockysize": 512, "compress": "zstd", "interleave": "band"}
LAYOUTS = {
    "strips_of_1": {"blockysize": 1, "interleave": "pixel"},
    "strips_of_7_planar": {"blockysize": 7, "interleave": "band"},
    "one_strip": {"blockysize": 70, "interleave": "pixel"},
    "tiles": {"tiled": True, "blockxsize": 16, "blockysize": 16, "interleave": "pixel"},
    "tiles_planar": {"tiled": True, "blockxsize": 32, "blockysize": 16, "interleave": "band"},
    "tiles_larger_than_the_raster": {"tiled": True, "blockxsize": 1024, "blockysize": 1024, "interleave": "pixel"},
    "sparse": {"tiled": True, "blockxsize": 16, "blockysize": 16, "sparse_ok": True, "compress": "lzw"},
    "big_endian": {"endianness": "big"},
    "big_endian_lzw_predictor": {"endianness": "big", "compress": "lzw", "predictor": 2},
    "bigtiff": {"bigtiff": "yes"},
    "bigtiff_big_endian_planar": {"bigtiff": "yes", "endianness": "big", "interleave": "band", "tiled": True},
    "conforming": CONFORMING,
    "conforming_predictor": CONFORMING | {"predictor": 2},
    "conforming_bigtiff": CONFORMING | {"bigtiff": "yes"},
    "conforming_but_interleaved": CONFORMING | {"interleave": "pixel"},
    "conforming_but_big_endian": CONFORMING | {"endianness": "big"},
    "min_is_white": {"photometric": "miniswhite"},
    "rgb": {"photometric": "rgb"},
}
for name, options in LAYOUTS.items():

    def laid_out(folder, options=options):
        bands = numbers()
        if options.get("sparse_ok"):
            for band in bands:
                band[:32, :64] = 0
        more = numbers(seed=3)[:1] if options.get("photometric") == "rgb" else []
        return gdal(folder / "in.tif", [*bands, *more], **options)

    KINDS[f"layout_{name}"] = laid_out


KINDS |= {
    "conforming_floats": lambda f: gdal(f / "in.tif", numbers("float32"), **CONFORMING, predictor=3),
    "conforming_64_bits": lambda f: gdal(f / "in.tif", numbers("int64"), **CONFORMING, predictor=2),
    "conforming_of_4_bits": lambda f: gdal(f / "in.tif", numbers("uint8", bits=4), **CONFORMING, nbits=4),
}


@kind
def conforming_and_sparse(folder):
    bands = numbers(shape=(600, 700))
    for band in bands:
        band[band == 7] = 1
        band[:512, :512] = 7
    made = gdal(folder / "in.tif", bands, nodata=7, sparse_ok=True, **CONFORMING)
    made.valid_red = made.valid_nir = bands[0] != 7
    made.nodata = (7, 7)
    return made


@kind
def layout_of_gdals_cog_driver(folder):
    bands = numbers(shape=(600, 700))
    return gdal(folder / "in.tif", bands, driver="COG", compress="deflate", blocksize=256)


def by_tifffile(folder: Path, dtype="uint16", **options) -> Kind:
    """A file that tifffile writes: no georeferencing, and layouts that GDAL does not write."""
    bands = numbers(dtype)
    stack = np.stack(bands, axis=0 if options["planarconfig"] == "separate" else 2)
    tifffile.imwrite(folder / "in.tif", stack, photometric="minisblack", **options)
    return Kind(folder / "in.tif", *bands, place={"crs": None, "transform": None})


KINDS |= {
    "tifffile_big_endian_strips": lambda f: by_tifffile(f, planarconfig="contig", byteorder=">", rowsperstrip=9),
    "tifffile_big_endian_float": lambda f: by_tifffile(f, "float32", planarconfig="separate", byteorder=">"),
    "tifffile_bigtiff_tiles": lambda f: by_tifffile(f, planarconfig="separate", bigtiff=True, tile=(32, 48)),
    "tifffile_deflate": lambda f: by_tifffile(f, planarconfig="contig", compression="zlib", predictor=True),
}

# --- few bits, palettes ---------------------------------------------------------------------------------------------

for dtype, bits in [("uint8", 1), ("uint8", 2), ("uint8", 4), ("uint8", 7), ("uint16", 9), ("uint16", 12)]:
    KINDS[f"nbits_{bits}"] = lambda folder, dtype=dtype, bits=bits: gdal(
        folder / "in.tif", numbers(dtype, bits=bits), nbits=bits
    )
KINDS["nbits_24"] = lambda folder: gdal(folder / "in.tif", numbers("uint32", bits=24), nbits=24)


@kind
def half_floats(folder):
    halves = [band.astype("float16").astype("float32") for band in numbers("float32")]
    return gdal(folder / "in.tif", halves, nbits=16)


def each_in_a_file(folder: Path, bands, suffix="tif", **options) -> Kind:
    for role, band in zip(("red", "nir"), bands, strict=True):
        write_raster(folder / f"{role}.{suffix}", [band], **options)
    return Kind(folder / f"{{band}}.{suffix}", *bands, sensor="files")


KINDS |= {
    "one_bit": lambda folder: each_in_a_file(folder, numbers("uint8", bits=1), nbits=1),
    "one_bit_min_is_white": lambda f: each_in_a_file(f, numbers("uint8", bits=1), nbits=1, photometric="miniswhite"),
    "one_bit_fax": lambda f: each_in_a_file(f, numbers("uint8", bits=1), nbits=1, compress="ccittfax4"),
    "min_is_white_alone": lambda folder: each_in_a_file(folder, numbers("uint8"), photometric="miniswhite"),
}
for dtype in ("uint8", "uint16"):

    def with_palette(folder, dtype=dtype):
        made = each_in_a_file(folder, numbers(dtype), photometric="palette")
        for role in ("red", "nir"):
            with rasterio.open(folder / f"{role}.tif", "r+") as file:
                file.write_colormap(1, {n: (n, 10, 20, 255) for n in range(200)})
        return made

    KINDS[f"palette_{dtype}"] = with_palette

# --- codecs ---------------------------------------------------------------------------------------------------------

CODECS = {
    "lzw": ("uint16", {}),
    "lzw_predictor": ("int16", {"compress": "lzw", "predictor": 2}),
    "deflate": ("uint8", {}),
    "deflate_predictor": ("uint32", {"compress": "deflate", "predictor": 2}),
    "deflate_predictor_64": ("int64", {"compress": "deflate", "predictor": 2}),
    "deflate_predictor_3": ("float32", {"compress": "deflate", "predictor": 3}),
    "zstd_predictor_3": ("float64", {"compress": "zstd", "predictor": 3}),
    "zstd_predictor_2_of_floats": ("float32", {"compress": "zstd", "predictor": 2}),
    "lzma": ("uint16", {}),
    "packbits": ("uint8", {}),
    "lerc": ("uint16", {"compress": "lerc", "max_z_error": 0}),
    "lerc_zstd": ("float32", {"compress": "lerc_zstd", "max_z_error": 0}),
    "lerc_deflate": ("float64", {"compress": "lerc_deflate", "max_z_error": 0}),
}
for name, (dtype, options) in CODECS.items():
    KINDS[f"codec_{name}"] = lambda folder, dtype=dtype, options={"compress": name} | options: gdal(
        folder / "in.tif", numbers(dtype), interleave="pixel", **options
    )


def lossy(folder: Path, bands, **options) -> Kind:
    path = write_raster(folder / "in.tif", bands, **options)
    with rasterio.open(path) as file:
        read = file.read()
    assert not np.array_equal(read[0], bands[0])
    return Kind(path, read[0], read[1])


def smooth(count: int) -> list[np.ndarray]:
    """Bands that lossy codecs are made for."""
    rows, cols = np.mgrid[: SHAPE[0], : SHAPE[1]]
    return [(100 + 50 * np.sin(rows / 9 + n) + 40 * np.cos(cols / 7)).astype("uint8") for n in range(count)]


KINDS |= {
    "codec_webp_lossless": lambda f: gdal(
        f / "in.tif", smooth(3), compress="webp", webp_lossless=True, interleave="pixel"
    ),
    "codec_webp": lambda f: lossy(f, smooth(3), compress="webp", interleave="pixel", tiled=True),
    "codec_jpeg_planar": lambda f: lossy(f, smooth(2), compress="jpeg", interleave="band"),
    "codec_jpeg_ycbcr": lambda f: lossy(
        f, smooth(3), compress="jpeg", photometric="ycbcr", interleave="pixel", tiled=True
    ),
    "codec_lerc_lossy": lambda f: lossy(f, numbers("float32"), compress="lerc", max_z_error=0.5),
}

# --- other drivers and virtual rasters ------------------------------------------------------------------------------

KINDS |= {
    "envi": lambda folder: gdal(folder / "in.img", numbers("int16"), driver="ENVI", interleave="bil"),
    "erdas_imagine": lambda folder: gdal(folder / "in.img", numbers("uint16"), driver="HFA"),
    "png": lambda folder: each_in_a_file(folder, numbers("uint16"), "png", driver="PNG"),
}
if "jp2" in raster_driver_extensions():
    JP2 = {"driver": "JP2OpenJPEG", "quality": 100, "reversible": "yes"}
    KINDS["jp2"] = lambda folder: each_in_a_file(folder, numbers(shape=(300, 280)), "jp2", **JP2)
    KINDS["jp2_12_bits"] = lambda f: each_in_a_file(f, numbers(bits=12, shape=(300, 280)), "jp2", nbits=12, **JP2)


def vrt(path: Path, *sources: str, relative=False) -> Path:
    """A virtual raster with band 1 of each source, placed as write_raster places its files."""
    bands = "".join(
        f'<VRTRasterBand dataType="UInt16" band="{number}"><SimpleSource><SourceFilename relativeToVRT="{relative:d}">'
        f"{source}</SourceFilename><SourceBand>1</SourceBand></SimpleSource></VRTRasterBand>"
        for number, source in enumerate(sources, 1)
    )
    place = f"<SRS>EPSG:32631</SRS><GeoTransform>{','.join(map(str, ORIGIN.to_gdal()))}</GeoTransform>"
    size = f'rasterXSize="{SHAPE[1]}" rasterYSize="{SHAPE[0]}"'
    path.write_text(f"<VRTDataset {size}>{place}{bands}</VRTDataset>", encoding="utf-8")
    return path


@kind
def netcdf_variables(folder):
    made = with_nodata(folder, "int16", -32767)
    rasterio.shutil.copy(made.path, folder / "in.nc", driver="netCDF")
    made.path, made.sensor = f'NETCDF:"{folder}/in.nc":{{band}}', "variables"
    return made


@kind
def pages_of_a_tiff(folder):
    bands = numbers()
    with tifffile.TiffWriter(folder / "in.tif") as tiff:
        for band in bands:
            tiff.write(band, photometric="minisblack")
    path = f"GTIFF_DIR:{{band}}:{folder}/in.tif"
    return Kind(path, *bands, sensor="variables", place={"crs": None, "transform": None})


@kind
def header_in_a_sidecar(folder):
    bands, valid = numbers(), [holes(1), holes(2)]
    for band, where in zip(bands, valid, strict=True):
        band[band == 5] = 1
        band[~where] = 5
    made = each_in_a_file(folder, bands, "png", driver="PNG")
    said = "<NoDataValue>5</NoDataValue><Offset>2</Offset><Scale>0.5</Scale>"
    for role in ("red", "nir"):
        sidecar = folder / f"{role}.png.aux.xml"
        header = sidecar.read_text().replace("</PAMDataset>", f'<PAMRasterBand band="1">{said}</PAMRasterBand>')
        sidecar.write_text(f"{header}</PAMDataset>")
    made.valid_red, made.valid_nir = valid
    made.nodata, made.radiometry = (5, 5), ((0.5, 2.0), (0.5, 2.0))
    return made


@kind
def vrt_of_two_files(folder):
    made = each_in_a_file(folder, numbers())
    made.path, made.sensor = vrt(folder / "in.vrt", folder / "red.tif", folder / "nir.tif"), "rednir"
    return made


@kind
def vrt_of_files_beside_it_band_by_band(folder):
    made = each_in_a_file(folder / "data", numbers())
    for role in ("red", "nir"):
        vrt(folder / f"{role}.vrt", f"data/{role}.tif", relative=True)
    made.path = folder / "{band}.vrt"
    return made


@kind
def zip_archive(folder):
    made = gdal(folder / "in.tif", numbers())
    with zipfile.ZipFile(folder / "a b.zip", "w") as archive:
        archive.write(made.path, "inner folder/in.tif")
    made.path.unlink()
    made.path = f"/vsizip/{folder}/a b.zip/inner folder/in.tif"
    return made


@kind
def zip_archive_with_a_file_per_band(folder):
    made = each_in_a_file(folder, numbers())
    with zipfile.ZipFile(folder / "in.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for role in ("red", "nir"):
            archive.write(folder / f"{role}.tif", f"{role}.tif")
    made.path = f"/vsizip/{folder}/in.zip/{{band}}.tif"
    return made


@kind
def tar_archive(folder):
    made = gdal(folder / "in.tif", numbers())
    with tarfile.open(folder / "in.tar.gz", "w:gz") as archive:
        archive.add(made.path, "in.tif")
    made.path = f"/vsitar/{folder}/in.tar.gz/in.tif"
    return made


@kind
def link_to_a_file(folder):
    made = gdal(folder / "in.tif", numbers())
    (folder / "link").symlink_to(made.path)
    made.path = folder / "link"
    return made


# --- names, sizes ---------------------------------------------------------------------------------------------------

NAMES = [
    "with space.tif",
    "scène_日本.tif",
    "[2021]{07}*?.tif",
    "100%_a#b&c;d'e.tif",
    'say "x", y.tif',
    "no_suffix",
    "two.dots.TIFF",
    "S2A:10m.tif",
    "-dash.tif",
    "back\\slash$HOME~.tif",
    f"{'long' * 60}.tif",
]
for name in NAMES:
    KINDS[f"name_{name[:20]}"] = lambda folder, name=name: gdal(folder / name, numbers())
KINDS["name_of_folders"] = lambda f: each_in_a_file(f / "T32 [x]" / "ü {y}" / "IMG_DATA.SAFE", numbers())

for shape in [(1, 1), (1, 700), (600, 1), (512, 512), (513, 511), (2, 1025), (3, 70000)]:
    KINDS[f"size_{shape[0]}x{shape[1]}"] = lambda folder, shape=shape: gdal(folder / "in.tif", numbers(shape=shape))

# --- scale, offset, unit --------------------------------------------------------------------------------------------


def scaled(folder: Path, dtype: str, scales, offsets) -> Kind:
    made = gdal(folder / "in.tif", numbers(dtype))
    with rasterio.open(made.path, "r+") as file:
        file.scales, file.offsets, file.units, file.descriptions = scales, offsets, ("1", "K"), ("B04", "rød")
    made.radiometry = tuple(zip(scales, offsets, strict=True))
    return made


KINDS |= {
    "scaled_alike": lambda f: scaled(f, "uint16", (1e-4, 1e-4), (-0.1, -0.1)),
    "scaled_apart": lambda f: scaled(f, "int16", (2.75e-5, 1e-3), (-0.2, 5.0)),
    "scaled_floats": lambda f: scaled(f, "float32", (0.5, 2.0), (0.0, 1.0)),
}


@kind
def scaled_by_the_sheet(folder):
    made = scaled(folder, "uint16", (1e-4, 1e-4), (-0.1, -0.1))
    made.row, made.radiometry = {"scale": 0.01, "offset": 3}, ((0.01, 3.0), (0.01, 3.0))
    return made


# --- places ---------------------------------------------------------------------------------------------------------

PLACES = {
    "south_up": {"crs": "EPSG:32631", "transform": Affine(10, 0, 500000, 0, 10, 4000000)},
    "rotated": {"crs": "EPSG:32631", "transform": Affine(7.8, -4.5, 500000, -4.5, -7.8, 5000000)},
    "sheared": {"crs": "EPSG:32631", "transform": Affine(10, 2, 500000, 1, -10, 5000000)},
    "across_the_antimeridian": {"crs": "EPSG:4326", "transform": Affine(0.01, 0, 179.6, 0, -0.01, 10)},
    "at_the_pole": {"crs": "EPSG:3413", "transform": Affine(1000, 0, -45000, 0, -1000, 35000)},
    "with_heights": {"crs": "EPSG:32631+5773", "transform": ORIGIN},
    "without_crs": {"crs": None, "transform": ORIGIN},
    "without_epsg_code": {
        "crs": CRS.from_proj4("+proj=sinu +R=6371007.181 +units=m"),
        "transform": Affine(463.3, 0, 1111950, 0, -463.3, 5559752),
    },
    "fine_and_far": {"crs": "EPSG:32631", "transform": Affine(0.02, 0, 512345.678, 0, -0.02, 5432109.876)},
}
for name, place in PLACES.items():

    def placed(folder, place=place):
        made = gdal(folder / "in.tif", numbers(), **place)
        made.place = place
        return made

    KINDS[f"place_{name}"] = placed


@kind
def place_by_ground_control_points(folder):
    bands = numbers()
    path = write_raster(folder / "in.tif", bands, crs=None, transform=None)
    corners = ((0, 0), (0, 90), (70, 0), (70, 90), (35, 40))
    points = [GroundControlPoint(r, c, 500000 + 10 * c + r, 5e6 - 10 * r, 2.0) for r, c in corners]
    with rasterio.open(path, "r+") as file:
        file.gcps = (points, CRS.from_epsg(32631))
    return Kind(path, *bands, place={"gcps": points})


@kind
def place_of_pixel_centres(folder):
    made = gdal(folder / "in.tif", numbers())
    with rasterio.open(made.path, "r+") as file:
        file.update_tags(AREA_OR_POINT="Point")
    return made


# --- refused --------------------------------------------------------------------------------------------------------

REFUSED: dict[str, tuple[Callable[[Path], Path | str], str, tuple[str, ...]]] = {
    "alpha_as_nir": (
        lambda folder: write_raster(folder / "in.tif", numbers("uint8"), alpha="YES"),
        "alpha_as_band",
        ("in.tif", "'nir'", "gdal_edit.py -colorinterp_2 undefined"),
    ),
    "part_of_a_vrt_gone": (
        lambda folder: vrt(folder / "in.vrt", "gone.tif", "gone.tif"),
        "not_found",
        ("in.vrt", "gone.tif"),
    ),
    "archive_gone": (lambda folder: f"/vsizip/{folder}/gone.zip/in.tif", "not_found", ("gone.zip", "column 'path'")),
    "folder": (lambda folder: folder, "unreadable", ("not recognized",)),
    "complex": (
        lambda folder: write_raster(folder / "in.tif", [band.astype("complex64") for band in numbers()]),
        "complex_dtype",
        ("in.tif", "complex64"),
    ),
    # GeoTIFF has no way to write a turned pole
    "crs_beyond_geotiff": (
        lambda folder: turned_pole(folder / "in.vrt"),
        "header_lost",
        ("crs",),
    ),
}


def turned_pole(path: Path) -> Path:
    write_raster(path.with_suffix(".tif"), numbers())
    crs = CRS.from_proj4("+proj=ob_tran +o_proj=longlat +o_lon_p=0 +o_lat_p=39 +R=6371229 +to_meter=0.0174532925199433")
    vrt(path, path.with_suffix(".tif"), path.with_suffix(".tif"))
    text = path.read_text(encoding="utf-8").replace("EPSG:32631", crs.to_wkt().replace('"', "&quot;"))
    path.write_text(text, encoding="utf-8")
    return path


# --- tests ----------------------------------------------------------------------------------------------------------


def scene_of(name: str) -> str:
    return f"kind-{[*KINDS, *REFUSED].index(name)}"


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """All kinds as one campaign; (run, {name: Kind})."""
    root = tmp_path_factory.mktemp("kinds")
    kinds, rows = {}, []
    for name, make in KINDS.items():
        folder = root / scene_of(name)
        folder.mkdir()
        kinds[name] = found = make(folder)
        rows.append({"scene": scene_of(name), "sensor": found.sensor, "path": found.path} | found.row)
    for name, (make, _, _) in REFUSED.items():
        folder = root / scene_of(name)
        folder.mkdir()
        rows.append({"scene": scene_of(name), "sensor": "rednir", "path": make(folder)})
    return run_campaign(root, rows, {"ndvi": NDVI}, SENSORS), kinds


def done(made, name: str):
    """The campaign's run, the scene's id, and its kind."""
    run, kinds = made
    line = run.lines[scene_of(name)]
    assert line["state"] == "done", line["message"]
    return run, scene_of(name), kinds[name]


@pytest.mark.parametrize("name", KINDS)
def test_the_store_holds_what_was_written(made, name):
    run, scene, kind = done(made, name)
    bands = run.cogs(scene)["bands"]
    outside = {role for role, band in bands.items() if band["kind"] == "mask"}
    for role, pixels, nodata in zip(("red", "nir"), (kind.red, kind.nir), kind.nodata, strict=True):
        band = bands[role]
        with rasterio.open(run.stored(scene, role)) as file:
            assert file.dtypes[band["band"] - 1] == pixels.dtype == band["dtype"]
            assert file.read(band["band"]).tobytes() == pixels.tobytes()
            valid = file.read_masks(band["band"]) > 0
        assert repr(decode_number(band["nodata"])) == repr(nodata)
        if nodata is not None and band["mask"]:
            valid &= pixels != nodata  # GDAL tells of the mask alone
        if not outside:
            assert np.array_equal(valid & np.isfinite(pixels), kind.valid(role))
        assert (band["radiometry"]["scale"], band["radiometry"]["offset"]) == kind.radiometry[role == "nir"]


@pytest.mark.parametrize("name", KINDS)
def test_ndvi_is_the_float64_formula(made, name):
    run, scene, kind = done(made, name)
    pixels = check_product(run.product(scene))
    check_ndvi(pixels, kind.red, kind.nir, kind.valid("red") & kind.valid("nir"), kind.radiometry)


@pytest.mark.parametrize("name", KINDS)
def test_ndvi_lies_where_its_input_does(made, name):
    run, scene, kind = done(made, name)
    with rasterio.open(run.product(scene)) as file:
        wanted = kind.place.get("transform")
        assert file.transform.almost_equals(wanted, 1e-9) if wanted else file.transform.is_identity
        points, crs = file.gcps
        if "gcps" in kind.place:
            assert crs == "EPSG:32631"
            assert [(p.row, p.col, p.x, p.y, p.z) for p in points] == [
                (p.row, p.col, p.x, p.y, p.z) for p in kind.place["gcps"]
            ]
        else:
            assert not points and file.crs == kind.place["crs"]


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_used_is_refused_with_words(made, name):
    run, scene, (_, reason, words) = made[0], scene_of(name), REFUSED[name]
    line = run.lines[scene]
    assert (line["state"], line["reason"], line["retryable"]) == ("failed", reason, False), line["message"]
    for word in (scene, *words):
        assert word in line["message"]
    assert run.files("cogs", scene) == run.files("products", scene) == []


FLOATS = st.integers(-(2**20), 2**20).map(lambda number: number / 8) | st.sampled_from([np.nan, np.inf, -np.inf])


@st.composite
def rasters(draw):
    """Red and NIR of one dtype, perhaps with nodata, perhaps with a mask, in some layout."""
    dtype = draw(st.sampled_from(["uint8", "int16", "uint16", "int32", "float32"]))
    shape = draw(arrays.array_shapes(min_dims=2, max_dims=2, max_side=40))
    elements = FLOATS if dtype == "float32" else None
    red, nir = (draw(arrays.arrays(dtype, shape, elements=elements)) for _ in range(2))
    # of the pixels, or hardly anything would be it
    nodata = draw(st.none() | st.sampled_from(red.ravel().tolist()))
    if nodata is not None and np.isinf(nodata):
        nodata = -9999.0
    mask = draw(st.none() | arrays.arrays(bool, shape))
    options = draw(st.sampled_from([LAYOUTS[name] for name in ("strips_of_1", "tiles_planar", "big_endian")]))
    return red, nir, nodata, mask, options


@settings(max_examples=40, deadline=None, derandomize=True)
@given(raster=rasters())
def test_any_small_raster(raster):
    red, nir, nodata, mask, options = raster
    with tempfile.TemporaryDirectory() as name, rasterio.Env():
        folder = Path(name)
        write_raster(folder / "in.tif", [red, nir], nodata=nodata, mask=mask, **options)
        rows = [{"scene": "S1", "sensor": "rednir", "path": folder / "in.tif"}]
        run = run_campaign(folder, rows, {"ndvi": NDVI}, SENSORS)
        assert run.lines["S1"]["state"] == "done", run.lines["S1"]["message"]
        for role, pixels in (("red", red), ("nir", nir)):
            with rasterio.open(run.stored("S1", role)) as file:
                np.testing.assert_array_equal(file.read(1), pixels)
        valid = np.isfinite(red) & np.isfinite(nir) & (True if mask is None else mask)
        if nodata is not None:
            valid &= (red != nodata) & (nir != nodata)
        check_ndvi(check_product(run.product("S1")), red, nir, valid)


@pytest.mark.parametrize("masks", [{}, {"scl": {"classes": [3]}}])
def test_of_all_bands_only_those_that_nobody_needs_may_be_missing(tmp_path, masks):
    """A mask that is asked for and cannot be applied must not give unmasked products."""
    sensor = {"red": {"position": 1}, "nir": {"position": 2}, "scl": {"position": 3, "kind": "classes"}}
    rows = [{"scene": "S1", "sensor": "scl", "path": str(write_raster(tmp_path / "in.tif", numbers()))}]
    run = run_campaign(tmp_path, rows, {"ndvi": NDVI}, {"scl": sensor}, cog={"bands": "all"}, masks=masks)
    line = run.lines["S1"]
    if masks:
        assert (line["state"], line["reason"]) == ("failed", "band_missing")
        assert "'scl'" in line["message"] and "has no band 3" in line["message"]
        assert run.files("products", "S1") == []
    else:
        assert line["state"] == "done"

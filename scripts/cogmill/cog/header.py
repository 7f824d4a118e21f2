"""What a GeoTIFF says about its pixels: made by GDAL in a tiny file in memory, whose tags our writer copies.

So every CRS, ground control point, colour or text is written just as GDAL writes it, and read back by all that
read GDAL's files.
"""

import contextlib
import math
import threading
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np
import rasterio
from rasterio.control import GroundControlPoint
from rasterio.crs import CRS
from rasterio.errors import CRSError, NotGeoreferencedWarning, RasterioError
from rasterio.io import DatasetReader, MemoryFile

from cogmill.cog.index import Directory, TiffStructure
from cogmill.errors import SceneError

# Tags that say how the pixels are stored: those are the writer's own. All others are the template's.
STRUCTURE = {
    254,
    255,
    256,
    257,
    258,
    259,
    262,
    266,
    273,
    277,
    278,
    279,
    284,
    317,
    322,
    323,
    324,
    325,
    338,
    339,
    42113,
}
PHOTOMETRIC, COLORMAP = 262, 320

# catch_warnings changes the state of the whole process
_warnings_lock = threading.Lock()


@dataclass(frozen=True)
class Header:
    """Metadata of a single-band file.

    Parameters
    ----------
    crs : str or None
        WKT, of the pixels or, with `gcps`, of the ground control points.
    transform : tuple of 6 floats or None
        Affine (a, b, c, d, e, f) of pixel corners.
    gcps : tuple of (row, col, x, y, z) or None
        Ground control points; instead of `transform`.
    rpcs : dict or None
        GDAL's RPC metadata items (names and texts).
    point : bool
        AREA_OR_POINT=Point; `transform` is of pixel corners all the same.
    scale, offset : float or None
        value = pixel * scale + offset; None, or 1 and 0, write no tag.
    unit, description : str or None
    tags, band_tags : dict
        Text by name, of the file and of the band.
    colormap : dict or None
        {pixel value: (red, green, blue) or (red, green, blue, alpha)}, for uint8 and uint16; TIFF keeps no
        alpha.
    """

    crs: str | None = None
    transform: tuple[float, float, float, float, float, float] | None = None
    gcps: tuple[tuple[float, float, float, float, float], ...] | None = None
    rpcs: dict | None = None
    point: bool = False
    scale: float | None = None
    offset: float | None = None
    unit: str | None = None
    description: str | None = None
    tags: dict = field(default_factory=dict)
    band_tags: dict = field(default_factory=dict)
    colormap: dict | None = None


@contextlib.contextmanager
def _anywhere() -> Iterator[None]:
    """Silence the warning about files that lie nowhere: such files are valid input."""
    with _warnings_lock, warnings.catch_warnings():
        warnings.simplefilter("ignore", NotGeoreferencedWarning)
        yield


def open_raster(path, *args, **options):
    """`rasterio.open` without the warning about files that lie nowhere."""
    with _anywhere():
        return rasterio.open(path, *args, **options)


class _OneBand(DatasetReader):
    """A dataset that tells the texts of one band alone: rasterio decodes those of all `indexes` at once."""

    number = 1

    @property
    def indexes(self):
        return (self.number,)


def band_text(dataset, what: str, band: int) -> str | None:
    """Description or unit of one band (1-based).

    Parameters
    ----------
    dataset : rasterio dataset
    what : {"descriptions", "units"}
    band : int

    Raises
    ------
    UnicodeDecodeError
        The text is not in UTF-8.
    """
    try:
        return getattr(dataset, what)[band - 1] or None
    except UnicodeDecodeError:
        with _anywhere():
            alone = _OneBand(dataset.name)
        with alone:
            alone.number = band
            return getattr(alone, what)[0] or None


def _text_or_none(dataset, what: str, band: int) -> str | None:
    try:
        return band_text(dataset, what, band)
    except UnicodeDecodeError:
        return None


def read_header(dataset, band: int = 1) -> Header:
    """The Header of band `band` (1-based) of an open rasterio dataset; texts that are not in UTF-8 are left out."""
    points, points_crs = dataset.gcps
    crs = points_crs if points else dataset.crs
    tags = dataset.tags()
    point = tags.pop("AREA_OR_POINT", "Area") == "Point"
    transform = tuple(dataset.transform)[:6]
    try:
        colormap = dataset.colormap(band)
    except ValueError:
        colormap = None
    return Header(
        crs=crs.to_wkt() if crs else None,
        transform=None if points or dataset.transform.is_identity else transform,
        gcps=tuple((p.row, p.col, p.x, p.y, p.z or 0.0) for p in points) or None,
        rpcs=dataset.tags(ns="RPC") or None,
        point=point,
        scale=dataset.scales[band - 1],
        offset=dataset.offsets[band - 1],
        unit=_text_or_none(dataset, "units", band),
        description=_text_or_none(dataset, "descriptions", band),
        tags=tags,
        band_tags=dataset.tags(band),
        colormap=colormap,
    )


def template_tags(header: Header, dtype: str, tags: dict, name: str) -> tuple[list[tuple[int, int, int, bytes]], int]:
    """Tags of a GeoTIFF that GDAL makes of `header`.

    Parameters
    ----------
    header : Header
    dtype : str
    tags : dict
        Dataset tags, over those of the header.
    name : str
        For error messages.

    Returns
    -------
    tags : list of (tag, TIFF field type, count, little-endian bytes)
    photometric : int

    Raises
    ------
    SceneError
        `header` when GDAL cannot write it.
    """
    try:
        data = _template(replace(header, tags=header.tags | tags), dtype)
    except (RasterioError, CRSError, ValueError, TypeError, OverflowError) as error:
        raise SceneError(f"{name}: GeoTIFF cannot hold this metadata: {error}", "header") from error
    tiff = TiffStructure(f"template of {name}", len(data), lambda offset, size: data[offset : offset + size])
    directory: Directory = tiff.directories[0]
    copied = [
        (tag, entry.kind, entry.count, tiff.raw(directory, tag))
        for tag, entry in sorted(directory.entries.items())
        if tag not in STRUCTURE
    ]
    return copied, tiff.number(directory, PHOTOMETRIC)


def _template(header: Header, dtype: str) -> bytes:
    # GDAL keeps the order in which items come; equal headers must give equal files
    tags = {str(key): str(value) for key, value in sorted(header.tags.items()) if key != "AREA_OR_POINT"}
    profile = {"driver": "GTiff", "width": 1, "height": 1, "count": 1, "dtype": dtype, "ENDIANNESS": "LITTLE"}
    # PAM would hide in a sidecar what GeoTIFF cannot hold; without it the check of the written file finds it
    with rasterio.Env(GDAL_PAM_ENABLED=False), MemoryFile() as memory:
        with open_raster(memory.name, "w", **profile) as dataset:
            if header.colormap:
                dataset.write_colormap(1, header.colormap)
            dataset.update_tags(AREA_OR_POINT="Point" if header.point else "Area", **tags)
            crs = CRS.from_wkt(header.crs) if header.crs else None
            if header.gcps:
                dataset.gcps = [GroundControlPoint(r, c, x, y, z) for r, c, x, y, z in header.gcps], crs or CRS()
            else:
                if crs:
                    dataset.crs = crs
                if header.transform is not None:
                    dataset.transform = rasterio.Affine(*header.transform)
            if header.rpcs:
                dataset.update_tags(ns="RPC", **{key: str(value) for key, value in sorted(header.rpcs.items())})
            dataset.update_tags(1, **{str(key): str(value) for key, value in sorted(header.band_tags.items())})
            if _number(header.scale, 1.0) != 1.0 or _number(header.offset, 0.0) != 0.0:
                dataset.scales, dataset.offsets = (
                    (_number(header.scale, 1.0),),
                    (_number(header.offset, 0.0),),
                )
            if header.unit:
                dataset.units = (header.unit,)
            if header.description:
                dataset.set_band_description(1, header.description)
        return memory.read()


def _number(value: float | None, default: float) -> float:
    return default if value is None else float(value)


def lost(header: Header, tags: dict, path) -> list[str]:
    """What of `header` and `tags` the file `path` does not give back, as `what: found against wanted`."""
    with rasterio.Env(GDAL_PAM_ENABLED=False), open_raster(path, driver="GTiff") as dataset:
        found = read_header(dataset)
    wanted = replace(header, tags=header.tags | tags)
    problems = []

    def compare(what, got, want, same) -> None:
        if not same:
            problems.append(f"{what}: {got!r} against {want!r}")

    compare("crs", found.crs, wanted.crs, _same_crs(found.crs, wanted.crs))
    identity = (1.0, 0.0, 0.0, 0.0, 1.0, 0.0)
    transforms = [tuple(t.transform or identity) for t in (found, wanted)] if not wanted.gcps else [identity, identity]
    compare("transform", *transforms, _close(*transforms))
    points = [[number for point in side.gcps or () for number in point] for side in (found, wanted)]
    compare("gcps", *points, _close(*points))
    compare("rpcs", found.rpcs, wanted.rpcs, bool(found.rpcs) == bool(wanted.rpcs))
    compare("AREA_OR_POINT", found.point, wanted.point, found.point == wanted.point)
    for what, default in (("scale", 1.0), ("offset", 0.0)):
        numbers = [_number(getattr(side, what), default) for side in (found, wanted)]
        compare(what, *numbers, np.array_equal(*numbers, equal_nan=True))
    for what in ("unit", "description"):
        texts = [getattr(side, what) or "" for side in (found, wanted)]
        # where no unit was given, GDAL takes the one of a vertical CRS
        compare(what, *texts, not texts[1] or _same_text(*texts))
    for what, got, want in (
        ("tag", found.tags, wanted.tags),
        ("band tag", found.band_tags, wanted.band_tags),
    ):
        for key in sorted(set(want) - {"AREA_OR_POINT"}):
            compare(f"{what} {key}", got.get(key), want[key], _same_text(got.get(key, ""), str(want[key])))
    for value, colour in (wanted.colormap or {}).items():
        got = (found.colormap or {}).get(value, ())[:3]
        compare(f"colour of {value}", got, tuple(colour), tuple(got) == tuple(colour)[:3])
    return problems


def _same_text(got: str, want: str) -> bool:
    # XML, in which GDAL keeps text, does not keep white space at its ends
    return got.split() == want.split()


def _same_crs(got: str | None, want: str | None) -> bool:
    if not got or not want:
        return not got and not want
    found, wanted = CRS.from_wkt(got), CRS.from_wkt(want)
    # GeoTIFF keeps no names of parts that have no code; the numbers decide then
    return found == wanted or (bool(found.to_dict()) and found.to_dict() == wanted.to_dict())


def _close(got, want) -> bool:
    return len(got) == len(want) and all(
        math.isclose(a, b, rel_tol=1e-12, abs_tol=1e-9) for a, b in zip(got, want, strict=True)
    )

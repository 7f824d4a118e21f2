"""The way through GDAL's own warper: `warp.engine: gdal`, ground control points and rational polynomials.

A plane of values goes into a temporary GeoTIFF, and a warped VRT over it gives the target's pixels window by window.
rasterio's WarpedVRT would not do: with a given target it takes neither ground control points nor RPCs, silently, and
its coordinates are never exact. So the VRT's own XML is written here, without an approximating transformer.
"""

import json
import math
from collections.abc import Iterable
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import rasterio
from rasterio.control import GroundControlPoint
from rasterio.crs import CRS
from rasterio.errors import CRSError, RasterioError
from rasterio.rpc import RPC
from rasterio.transform import GCPTransformer, RPCTransformer
from rasterio.warp import transform as transform_points

from cogmill.cog.header import open_raster
from cogmill.errors import RetryableError, SceneError
from cogmill.grids import TILE, GridSpec, Window

METHODS = {
    "nearest": "NearestNeighbour",
    "bilinear": "Bilinear",
    "cubic": "Cubic",
    "lanczos": "Lanczos",
    "average": "Average",
    "mode": "Mode",
    "min": "Minimum",
    "max": "Maximum",
    "median": "Median",
}
DTYPES = {"float32": "Float32", "float64": "Float64"}
WARP_MEMORY = 64 * 2**20
WGS84 = "EPSG:4326"
PLACE = "COGMILL_PLACE"


def write_plane(
    path: str | Path,
    source: GridSpec,
    dtype: str,
    windows: Iterable[tuple[Window, np.ndarray]],
    gcps: list | None = None,
    rpcs: dict | None = None,
) -> None:
    """Write a plane of values, NaN where invalid, as a tiled GeoTIFF that `WarpedPlane` reads.

    Parameters
    ----------
    path : path
        Overwritten.
    source : GridSpec
        Grid of the plane.
    dtype : {"float32", "float64"}
    windows : iterable of (Window, (rows, cols) array)
        Best of whole tiles. What no window covers is invalid.
    gcps : list of [row, col, x, y, z], optional
        In the CRS of `source`.
    rpcs : dict, optional
        GDAL's RPC metadata items.

    Raises
    ------
    RetryableError
        `io_error`: the file cannot be written.
    """
    rows, cols = source.shape
    profile = {"driver": "GTiff", "height": rows, "width": cols, "count": 1, "dtype": dtype, "nodata": math.nan}
    profile |= {"tiled": True, "blockxsize": TILE, "blockysize": TILE, "compress": "ZSTD", "zstd_level": 1}
    # blocks that hold nothing valid take no room; the size of compressed data is not known in advance
    profile |= {"sparse_ok": True, "bigtiff": "IF_SAFER"}
    place = {"grid": source.to_json(), "gcps": gcps, "rpcs": rpcs}
    try:
        with rasterio.Env(GDAL_PAM_ENABLED=False), open_raster(path, "w", **profile) as file:
            file.update_tags(**{PLACE: json.dumps(place)})
            _georeference(file, source, gcps, rpcs)
            for window, values in windows:
                file.write(values, 1, window=_slices(window))
    except RasterioError as error:
        raise RetryableError(f"{path}: GDAL cannot write this temporary file: {error}", "io_error") from error


def _georeference(file, source: GridSpec, gcps: list | None, rpcs: dict | None) -> None:
    """For others who open the file; GeoTIFF cannot hold every CRS, so `WarpedPlane` goes by the tag."""
    crs = CRS.from_wkt(source.crs) if source.crs else None
    if gcps:
        file.gcps = [GroundControlPoint(*point) for point in gcps], crs or CRS()
        return
    if crs:
        file.crs = crs
    if source.transform:
        file.transform = rasterio.Affine(*source.transform)
    if rpcs:
        file.update_tags(ns="RPC", **{key: str(value) for key, value in rpcs.items()})


class WarpedPlane:
    """A plane on the pixels of another grid, by GDAL with exact coordinates and without widened kernels.

    Each read warps only what it needs, in the memory that GDAL's block cache and warper may take (64 MiB). The pixels
    are the same for any windows.

    Ground control points are fitted by a polynomial of order 1, or 2 from six points on, as gdalwarp does. Rational
    polynomials (RPCs) take the ground at height 0 above the ellipsoid of WGS 84.

    Parameters
    ----------
    path : path
        File of `write_plane`.
    target : GridSpec
    method : str
        One of METHODS.
    pipeline : str, optional
        PROJ pipeline from the plane's CRS (EPSG:4326 with RPCs) to the target's, both in the order (east, north) and
        in the units of the CRSs. Without it GDAL takes the best that it knows, for each place anew.
    threads : int
        For GDAL's warper.

    Raises
    ------
    SceneError
        `georeferencing` where GDAL cannot place the pixels.
    """

    def __init__(
        self, path: str | Path, target: GridSpec, method: str, *, pipeline: str | None = None, threads: int = 1
    ):
        self.path = Path(path)
        if not target.crs or not target.transform:
            raise SceneError(
                f"{self.path.name}: the target has no CRS or no transform. Correct the config key 'grid'",
                "georeferencing",
            )
        with open_raster(self.path) as file:
            dtype, place = file.dtypes[0], json.loads(file.tags()[PLACE])
        source, gcps, rpcs = GridSpec.from_json(place["grid"]), place["gcps"], place["rpcs"]
        _check_placed(source, gcps, rpcs)
        try:
            placing = _transformer(source, target, gcps, rpcs, pipeline)
            self.dataset = open_raster(_vrt(self.path, target, dtype, method, placing, threads))
        except (RasterioError, CRSError) as error:
            raise SceneError(
                f"GDAL cannot place these pixels by their {_means(gcps, rpcs)}: {error}. Correct the file's "
                "georeferencing, or take another target (config key 'grid')",
                "georeferencing",
            ) from error

    def __enter__(self) -> "WarpedPlane":
        return self

    def __exit__(self, *_) -> None:
        self.dataset.close()

    def read(self, window: Window) -> np.ndarray:
        """The values in `window` of the target as (rows, cols) of the plane's dtype, NaN where invalid."""
        try:
            return self.dataset.read(1, window=_slices(window))
        except RasterioError as error:
            raise RetryableError(f"{self.path}: GDAL cannot warp {window}: {error}", "io_error") from error


def footprint(
    source: GridSpec, gcps: list | None, rpcs: dict | None, crs: str, points: int = 64
) -> tuple[np.ndarray, np.ndarray]:
    """Points of a raster's outline in another CRS.

    Parameters
    ----------
    source : GridSpec
    gcps : list of [row, col, x, y, z] or None
        In the CRS of `source`; go before the transform.
    rpcs : dict or None
        Count where `source` has neither transform nor `gcps`; the ground at height 0.
    crs : str
        WKT or authority's code.
    points : int
        Steps on each side.

    Returns
    -------
    x, y : (4 * points,) float64
        East and north in `crs`; not finite where there is no such place.

    Raises
    ------
    SceneError
        `georeferencing`.
    """
    cols, rows = _outline(source.shape, points)
    try:
        _check_placed(source, gcps, rpcs)
        x, y, found = _to_map(source, gcps, rpcs, cols, rows)
        x, y = transform_points(CRS.from_user_input(found), CRS.from_user_input(crs), x, y)
    except (RasterioError, CRSError) as error:
        raise SceneError(
            f"GDAL cannot place a raster's outline by its {_means(gcps, rpcs)}: {error}", "georeferencing"
        ) from error
    return np.asarray(x, np.float64), np.asarray(y, np.float64)


def _outline(shape: tuple[int, int], points: int) -> tuple[np.ndarray, np.ndarray]:
    rows, cols = shape
    step = np.arange(points) / points
    zero, one = np.zeros(points), np.ones(points)
    x = np.concatenate((step, one, 1 - step, zero)) * cols
    y = np.concatenate((zero, step, one, 1 - step)) * rows
    return x, y


def _to_map(source: GridSpec, gcps, rpcs, cols, rows) -> tuple[np.ndarray, np.ndarray, str]:
    """Map coordinates of pixel coordinates, and their CRS."""
    if not gcps and source.transform:
        a, b, c, d, e, f = source.transform
        return a * cols + b * rows + c, d * cols + e * rows + f, source.crs
    if gcps:
        with GCPTransformer([GroundControlPoint(*point) for point in gcps]) as place:
            x, y = place.xy(rows, cols, offset="ul")
        return np.asarray(x), np.asarray(y), source.crs
    with RPCTransformer(RPC.from_gdal(rpcs)) as place:
        x, y = place.xy(rows, cols, offset="ul")
    return np.asarray(x), np.asarray(y), WGS84


def _check_placed(source: GridSpec, gcps, rpcs) -> None:
    if not (gcps or rpcs or source.transform):
        raise SceneError(
            "no georeferencing: neither a transform nor ground control points (GCPs) nor RPCs. Give a "
            "georeferenced file (column 'path'), or leave 'grid.crs: source'",
            "georeferencing",
        )
    if not source.crs and (gcps or source.transform):
        raise SceneError(
            f"its {_means(gcps, rpcs)} name no CRS, so nothing can be warped. Give a file with a CRS (column "
            "'path'), or leave 'grid.crs: source'",
            "georeferencing",
        )
    if gcps and len(gcps) < 3:
        raise SceneError(
            f"{len(gcps)} ground control points (GCPs), and warping needs 3 or more. Give a file with more, or "
            "leave 'grid.crs: source'",
            "georeferencing",
        )


def _means(gcps, rpcs) -> str:
    if gcps:
        return f"{len(gcps)} ground control points (GCPs)"
    return "rational polynomials (RPCs)" if rpcs else "transform"


def _slices(window: Window) -> tuple[tuple[int, int], tuple[int, int]]:
    return (window.row, window.row + window.rows), (window.col, window.col + window.cols)


def _vrt(path: Path, target: GridSpec, dtype: str, method: str, transformer, threads: int) -> str:
    """XML of a warped VRT of one band."""
    rows, cols = target.shape
    size = {"rasterXSize": str(cols), "rasterYSize": str(rows), "subClass": "VRTWarpedDataset"}
    root = ElementTree.Element("VRTDataset", size)
    _add(root, "SRS", target.crs)
    _add(root, "GeoTransform", _gdal_order(target.transform))
    band = ElementTree.SubElement(
        root, "VRTRasterBand", {"dataType": DTYPES[dtype], "band": "1", "subClass": "VRTWarpedRasterBand"}
    )
    _add(band, "NoDataValue", "nan")
    _add(root, "BlockXSize", min(TILE, cols))
    _add(root, "BlockYSize", min(TILE, rows))
    options = ElementTree.SubElement(root, "GDALWarpOptions")
    _add(options, "WarpMemoryLimit", WARP_MEMORY)
    _add(options, "ResampleAlg", METHODS[method])
    _add(options, "WorkingDataType", DTYPES[dtype])
    # GDAL would guess a scale from the sizes of its windows and widen its kernels by it
    warp = {"XSCALE": 1, "YSCALE": 1, "INIT_DEST": "NO_DATA", "NUM_THREADS": threads}
    # edges alone say too little of where the source lies around a pole or under a polynomial
    warp |= {"SAMPLE_GRID": "YES", "SOURCE_EXTRA": 5, "ERROR_OUT_IF_EMPTY_SOURCE_WINDOW": "FALSE"}
    for name, value in warp.items():
        _add(options, "Option", value, name=name)
    _add(options, "SourceDataset", path.absolute(), relativeToVRT="0")
    ElementTree.SubElement(options, "Transformer").append(transformer)
    mapping = ElementTree.SubElement(
        ElementTree.SubElement(options, "BandList"), "BandMapping", {"src": "1", "dst": "1"}
    )
    for name in ("SrcNoDataReal", "DstNoDataReal"):
        _add(mapping, name, "nan")
    return ElementTree.tostring(root, encoding="unicode")


def _transformer(source: GridSpec, target: GridSpec, gcps, rpcs, pipeline: str | None) -> ElementTree.Element:
    """From pixels of the source to map, from map to map, from map to pixels of the target: GDAL turns it around."""
    root = ElementTree.Element("GenImgProjTransformer")
    crs = source.crs
    if gcps:
        root.append(_polynomial(gcps))
    elif source.transform:
        _add(root, "SrcGeoTransform", _gdal_order(source.transform))
    else:
        root.append(_rational(rpcs))
        crs = CRS.from_user_input(WGS84).to_wkt()
    _add(root, "DstGeoTransform", _gdal_order(target.transform))
    middle = _middle_longitude(source, crs, gcps)
    if middle is not None or pipeline or CRS.from_wkt(crs) != CRS.from_wkt(target.crs):
        outer = ElementTree.SubElement(root, "ReprojectTransformer")
        outer.append(_reprojection(crs, target.crs, middle, pipeline))
    return root


def _polynomial(gcps: list) -> ElementTree.Element:
    root = ElementTree.Element("SrcGCPTransformer")
    inner = ElementTree.SubElement(root, "GCPTransformer")
    _add(inner, "Order", 0)  # GDAL's choice by the number of points
    _add(inner, "Reversed", 0)
    points = ElementTree.SubElement(inner, "GCPList")
    for number, (row, col, x, y, z) in enumerate(gcps, 1):
        place = {"Pixel": col, "Line": row, "X": x, "Y": y, "Z": z}
        ElementTree.SubElement(points, "GCP", {"Id": str(number)} | {key: repr(float(v)) for key, v in place.items()})
    return root


def _rational(rpcs: dict) -> ElementTree.Element:
    root = ElementTree.Element("SrcRPCTransformer")
    inner = ElementTree.SubElement(root, "RPCTransformer")
    _add(inner, "Reversed", 0)
    _add(inner, "HeightOffset", 0)
    items = ElementTree.SubElement(inner, "Metadata")
    for key, value in rpcs.items():
        _add(items, "MDI", value, key=key)
    return root


def _reprojection(source_crs: str, target_crs: str, middle: float | None, pipeline: str | None) -> ElementTree.Element:
    root = ElementTree.Element("ReprojectionTransformer")
    if pipeline:
        # GDAL hands the pipeline coordinates in the axis order of the CRSs' authorities, and ours wants (east, north):
        # stand-ins have that order, and with a pipeline nothing else of them counts
        source_crs, target_crs = (_stand_in(crs) for crs in (source_crs, target_crs))
    _add(root, "SourceSRS", source_crs)
    _add(root, "TargetSRS", target_crs)
    options = ElementTree.SubElement(root, "Options")
    if middle is not None:
        _add(options, "Option", repr(middle), key="CENTER_LONG")
    if pipeline:
        words = " ".join(word if word.startswith("+") else f"+{word}" for word in pipeline.split())
        _add(options, "Option", words, key="COORDINATE_OPERATION")
    return root


def _stand_in(crs: str) -> str:
    """A CRS in the order (east, north), geographic where `crs` is."""
    if not CRS.from_wkt(crs).is_geographic:
        return 'LOCAL_CS["plane",UNIT["metre",1],AXIS["Easting",EAST],AXIS["Northing",NORTH]]'
    return (
        'GEOGCS["sphere",DATUM["any",SPHEROID["any",6378137,298.257223563]],PRIMEM["Greenwich",0],'
        'UNIT["degree",0.0174532925199433]]'
    )


def _middle_longitude(source: GridSpec, crs: str, gcps) -> float | None:
    """Longitudes of a geographic source are taken within the 360 degrees around its middle."""
    if gcps or not source.transform or not CRS.from_wkt(crs).is_geographic:
        return None
    rows, cols = source.shape
    a, b, c = source.transform[:3]
    return a * cols / 2 + b * rows / 2 + c


def _gdal_order(transform) -> str:
    a, b, c, d, e, f = transform
    return ", ".join(repr(float(number)) for number in (c, a, b, f, d, e))


def _add(parent: ElementTree.Element, tag: str, text, **attributes: str) -> None:
    ElementTree.SubElement(parent, tag, attributes).text = str(text)

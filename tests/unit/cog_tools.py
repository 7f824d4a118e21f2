"""Small COGs for the tests of the package's reader, writer and checks."""

import numpy as np
from rasterio.crs import CRS

from cogmill.cog.writer import CogInfo, CogWriter, Header, Layer
from cogmill.grids import windows

DTYPES = ("uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64", "float32", "float64")
UTM31 = CRS.from_epsg(32631).to_wkt()
PLACED = Header(crs=UTM31, transform=(10.0, 0.0, 500000.0, 0.0, -10.0, 5000000.0))


def noise(dtype: str, shape: tuple[int, int], seed: int = 0) -> np.ndarray:
    """Any bits but NaNs for floats, the whole range for integers."""
    rng = np.random.default_rng(seed)
    if np.dtype(dtype).kind == "f":
        return rng.normal(size=shape).astype(dtype)
    bounds = np.iinfo(dtype)
    return rng.integers(bounds.min, bounds.max, shape, dtype=dtype, endpoint=True)


def write_cog(
    path, pixels, nodata=None, valid=None, header=PLACED, tile_rows=1, tile_cols=None, threads=1, **layer
) -> CogInfo:
    """Write `pixels` window by window; `spool_bytes` and `tags` are passed on."""
    options = {name: layer.pop(name) for name in ("spool_bytes", "spool_dir") if name in layer}
    tags = layer.pop("tags", None)
    plan = Layer(pixels.shape, pixels.dtype.name, nodata, mask=valid is not None, **layer)
    with CogWriter(path, plan, header, threads=threads, **options) as writer:
        for window in windows(pixels.shape, tile_rows, tile_cols):
            part = slice(window.row, window.row + window.rows), slice(window.col, window.col + window.cols)
            writer.write(window, pixels[part], None if valid is None else valid[part])
        return writer.finish(tags)


def same_bits(a: np.ndarray, b: np.ndarray) -> bool:
    """Equality that tells NaNs and zeros apart."""
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()

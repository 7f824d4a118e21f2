"""GDAL's own warp, to compare with: the gdalwarp program, and the library that rasterio brings."""

import shutil
import subprocess

import numpy as np
import pytest
import rasterio
from rasterio.crs import CRS
from rasterio.enums import Resampling
from rasterio.transform import Affine
from rasterio.vrt import WarpedVRT

NAMES = {"nearest": "near", "median": "med"}

needs_gdalwarp = pytest.mark.skipif(shutil.which("gdalwarp") is None, reason="gdalwarp: not installed")


def write_source(path, pixels, transform, crs, nodata=None):
    """Bands (rows, cols) or (bands, rows, cols) as a GeoTIFF."""
    bands = np.atleast_3d(pixels) if pixels.ndim == 3 else pixels[None]
    profile = {"driver": "GTiff", "count": len(bands), "height": bands.shape[1], "width": bands.shape[2]}
    with rasterio.open(path, "w", dtype=pixels.dtype, crs=crs, transform=transform, nodata=nodata, **profile) as file:
        file.write(bands)
    return path


def run_gdalwarp(source, target, method, crs, bounds, shape, dst_nodata, *more):
    """Exact coordinates, no kernel scaling; the target is `shape` pixels in `bounds` (left, bottom, right, top)."""
    command = ["gdalwarp", "-q", "-overwrite", "-et", "0", "-wo", "XSCALE=1", "-wo", "YSCALE=1"]
    command += ["-r", NAMES.get(method, method), "-t_srs", str(crs), "-te", *map(repr, map(float, bounds))]
    command += ["-ts", str(shape[1]), str(shape[0]), "-dstnodata", str(dst_nodata), *map(str, more)]
    subprocess.run([*command, str(source), str(target)], check=True, capture_output=True, text=True)
    with rasterio.open(target) as file:
        pixels = file.read()
    return pixels[0] if len(pixels) == 1 else pixels


def run_vrt(source, method, crs, bounds, shape, dst_nodata):
    """The same by rasterio's WarpedVRT; its tolerance cannot be 0."""
    left, bottom, right, top = bounds
    transform = Affine((right - left) / shape[1], 0, left, 0, (bottom - top) / shape[0], top)
    how = Resampling[{"median": "med"}.get(method, method)]
    with (
        rasterio.open(source) as file,
        WarpedVRT(
            file, crs=CRS.from_user_input(crs), transform=transform, height=shape[0], width=shape[1], resampling=how,
            nodata=dst_nodata, tolerance=1e-6, XSCALE="1", YSCALE="1",
        ) as vrt,
    ):  # fmt: skip
        pixels = vrt.read()
    return pixels[0] if len(pixels) == 1 else pixels


def inverse(transform, x, y):
    """Map coordinates to pixels in the order of operations that GDAL has."""
    a, b, c, d, e, f = transform[:6]
    if b == 0 and d == 0:
        return -c / a + x * (1 / a), -f / e + y * (1 / e)
    back = ~transform
    return back.c + x * back.a + y * back.b, back.f + x * back.d + y * back.e


def target_coordinates(bounds, shape, corners):
    """Map coordinates of the target's pixel centres or corners."""
    left, bottom, right, top = bounds
    rows, cols = shape
    shift = 0.0 if corners else 0.5
    col, row = np.meshgrid(np.arange(cols + corners) + shift, np.arange(rows + corners) + shift)
    return left + col * ((right - left) / cols), top + row * ((bottom - top) / rows)

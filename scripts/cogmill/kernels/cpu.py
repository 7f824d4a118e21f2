"""Products from bands on the CPU: one generated function for all products of a scene, compiled by Numba.

`Kernel` computes on the grid of the bands. `PlaneKernel` makes planes of bands (values, NaN = invalid); `WarpKernel`
resamples planes and computes products from them in one pass, so that a resampled band never goes to memory.

Rows are shared out to threads of our own, not to Numba's: Numba's threading layers abort a process that forks or that
calls from two threads. Each pixel depends on itself alone, and counts are whole numbers, so the bits are the same for
any number of threads and any windows.
"""

import contextlib
import functools
import hashlib
import importlib.util
import os
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numba import types

from cogmill.indices import Expression
from cogmill.kernels import cache_folder, njit, resample
from cogmill.kernels.codegen import python_lines, python_operand, steps
from cogmill.masks import native_nodata

BAND_DTYPES = ("uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64", "float32", "float64")
OUTPUT_DTYPES = ("float32", "int8", "uint8", "int16", "uint16", "int32", "uint32")
COUNTS = ("valid", "invalid", "clamped", "infinite")
# whose numbers float32 does not hold
WIDE_DTYPES = ("uint32", "int32", "uint64", "int64", "float64")


@dataclass(frozen=True)
class BandInput:
    """One band: value = stored number * `scale` + `offset`; a stored number equal to `nodata` is invalid."""

    name: str
    dtype: str
    nodata: float | int | None = None
    scale: float = 1.0
    offset: float = 0.0

    def __post_init__(self):
        if self.dtype not in BAND_DTYPES:
            raise ValueError(f"band '{self.name}' has dtype {self.dtype}; one of {', '.join(BAND_DTYPES)} is wanted")
        if not np.isfinite([self.scale, self.offset]).all():
            raise ValueError(f"band '{self.name}': scale {self.scale} and offset {self.offset} must be finite")

    @property
    def scaled(self) -> bool:
        return (self.scale, self.offset) != (1, 0)

    @property
    def plane_dtype(self) -> str:
        """float64 where float32 does not hold the stored numbers."""
        return "float64" if self.dtype in WIDE_DTYPES else "float32"


@dataclass(frozen=True)
class PlaneInput:
    """A plane (see `resample`) and how to resample it.

    `name` is what formulas call it: a band that two products take by two methods is two planes, and the formulas are
    renamed (`Expression.renamed`). `shape` is the (rows, cols) of the whole raster that planes are windows of.
    """

    name: str
    dtype: str
    method: str
    shape: tuple[int, int]

    def __post_init__(self):
        if self.dtype not in ("float32", "float64"):
            raise ValueError(f"plane '{self.name}' has dtype {self.dtype}; float32 or float64 is wanted")
        if self.method not in resample.METHODS:
            raise ValueError(
                f"plane '{self.name}' has method {self.method}; one of {', '.join(resample.METHODS)} is wanted"
            )

    @property
    def by_area(self) -> bool:
        return self.method in resample.AREA_METHODS


@dataclass(frozen=True)
class Output:
    """One product: float32 as it is, or packed to an integer type as (value - `offset`) / `scale`."""

    name: str
    expression: Expression
    dtype: str = "float32"
    scale: float = 1.0
    offset: float = 0.0
    nodata: float | int | None = None

    def __post_init__(self):
        if self.dtype not in OUTPUT_DTYPES:
            raise ValueError(
                f"product '{self.name}' has dtype {self.dtype}; one of {', '.join(OUTPUT_DTYPES)} is wanted"
            )
        if self.packed and native_nodata(self.nodata, self.dtype) is None:
            raise ValueError(f"product '{self.name}': nodata {self.nodata} is not a value of {self.dtype}")
        if not self.packed and (self.scale, self.offset) != (1, 0):
            raise ValueError(f"product '{self.name}': scale and offset are for packed integers, not for float32")
        if not self.scale or not np.isfinite([self.scale, self.offset]).all():
            raise ValueError(
                f"product '{self.name}': scale {self.scale} and offset {self.offset} must be finite, not 0"
            )

    @property
    def packed(self) -> bool:
        return self.dtype != "float32"

    @property
    def bare(self) -> bool:
        """Whether the formula is a band and nothing else."""
        return self.expression.node[0] == "name"


class Kernel:
    """All products of one scene in one pass over its bands.

    A pixel of a product is invalid where a band that its formula names is (nodata in the band's own dtype, NaN,
    infinity, value beyond float32, or the band's mask), where the scene's mask is 0, or where the formula gives NaN or
    infinity (0/0, x/0, the root of a negative number).

    Parameters
    ----------
    bands : tuple of BandInput
    outputs : tuple of Output
    threads : int, optional
        Number of threads; by default as many as this process may use cores.

    Raises
    ------
    ValueError
        Two bands of one name, no product, or a formula that names another band.

    Notes
    -----
    Value of a band: float64(stored) * scale + offset, rounded once to float32; scale 1 and offset 0 convert directly.
    Formula: IEEE float32 operations in the order of the formula, literals rounded to float32; powers as in
    `codegen`. Packed: in float64, q = (value - offset) / scale, then floor(q + 0.5), limited to the dtype; where the
    formula is a band's name, value is the band's in float64, so that whole numbers above 2**24 stay what they are. A
    valid pixel that would be stored as nodata gets nodata - 1, or nodata + 1 where nodata is the dtype's least number
    (as gdalwarp does). Float32 products hold one NaN (0x7fc00000) where invalid.
    """

    def __init__(self, bands: tuple[BandInput, ...], outputs: tuple[Output, ...], threads: int | None = None):
        self.bands, self.outputs = tuple(bands), tuple(outputs)
        _check_names([band.name for band in self.bands], self.outputs)
        self.threads = threads or _cores()
        self._nodata = [native_nodata(band.nodata, band.dtype) for band in self.bands]
        self._radiometry = np.array([(band.scale, band.offset) for band in self.bands], np.float64)
        self._packing = np.array([_packing(output) for output in self.outputs], np.float64)
        self._kernels = {}  # by which masks there are

    def __call__(
        self,
        pixels: Sequence[np.ndarray],
        valid: Sequence[np.ndarray | None],
        clear: np.ndarray | None,
        out: Sequence[np.ndarray],
    ) -> np.ndarray:
        """Compute a window.

        Parameters
        ----------
        pixels : sequence of (rows, cols) arrays
            One a band, of the band's dtype.
        valid : sequence of (rows, cols) uint8 or None
            The mask of each band's file, 0 = invalid; None where it has none.
        clear : (rows, cols) uint8 or None
            The scene's mask, 0 = invalid.
        out : sequence of (rows, cols) arrays
            One a product, of the product's dtype; filled.

        Returns
        -------
        (products, 4) int64
            Pixels valid, invalid, clamped and infinite. valid + invalid is all of them; clamped are the valid ones
            whose stored number is not the rounded one (out of the dtype's range, or moved off nodata); infinite are
            the invalid ones whose bands are all valid.

        Raises
        ------
        ValueError
            An array is missing, or has another shape or dtype.
        """
        shape = self._check(pixels, valid, clear, out)
        masks = tuple(mask is not None for mask in valid)
        kernel = self._compiled(masks, clear is not None)
        inputs = [np.ascontiguousarray(array) for array in (*pixels, *valid, clear) if array is not None]
        nodata = [value for value in self._nodata if value is not None]
        with _contiguous(out) as targets:

            def block(first: int, last: int) -> np.ndarray:
                counts = np.zeros((len(self.outputs), len(COUNTS)), np.int64)
                kernel(first, last, *inputs, *targets, *nodata, self._radiometry, self._packing, counts)
                return counts

            return _over_rows(block, shape[0], self.threads)

    def _check(self, pixels, valid, clear, out) -> tuple[int, int]:
        if len(pixels) != len(self.bands) or len(valid) != len(self.bands) or len(out) != len(self.outputs):
            raise ValueError(
                f"{len(self.bands)} bands and {len(self.outputs)} products need as many arrays; "
                f"there are {len(pixels)} of pixels, {len(valid)} of masks and {len(out)} of products"
            )
        shape = np.shape(out[0])
        if len(shape) != 2:
            raise ValueError(f"arrays are (rows, cols); the first product's has {len(shape)} dimensions")
        wanted = [(f"band '{b.name}'", a, b.dtype) for b, a in zip(self.bands, pixels, strict=True)]
        wanted += [(f"mask of band '{b.name}'", a, "uint8") for b, a in zip(self.bands, valid, strict=True)]
        wanted += [("scene mask", clear, "uint8")]
        wanted = [item for item in wanted if item[0].startswith("band") or item[1] is not None]
        wanted += [(f"product '{o.name}'", a, o.dtype) for o, a in zip(self.outputs, out, strict=True)]
        for what, array, dtype in wanted:
            _check_array(what, array, dtype, shape)
        return shape

    def _compiled(self, masks: tuple[bool, ...], clear: bool):
        key = (masks, clear)
        if key not in self._kernels:
            source = _source(self.bands, self.outputs, tuple(n is not None for n in self._nodata), masks, clear)
            self._kernels[key] = _compile(source, _signature(self.bands, self.outputs, self._nodata, masks, clear))
        return self._kernels[key]


class PlaneKernel:
    """The plane of a band, to be resampled.

    Parameters
    ----------
    band : BandInput
    threads : int, optional

    Notes
    -----
    float64(stored) * scale + offset, rounded once to float32; in float64, not rounded, where float32 does not hold the
    stored numbers (`band.plane_dtype`). NaN where `Kernel` calls the band or the scene's mask invalid.
    """

    def __init__(self, band: BandInput, threads: int | None = None):
        self.band, self.dtype = band, np.dtype(band.plane_dtype)
        self.threads = threads or _cores()
        self._nodata = native_nodata(band.nodata, band.dtype)
        self._radiometry = np.array([(band.scale, band.offset)], np.float64)

    def __call__(self, pixels: np.ndarray, valid: np.ndarray | None, clear: np.ndarray | None) -> np.ndarray:
        """Make the plane of a window.

        Parameters
        ----------
        pixels : (rows, cols) array
            Of the band's dtype.
        valid : (rows, cols) uint8 or None
            The mask of the band's file, 0 = invalid.
        clear : (rows, cols) uint8 or None
            The scene's mask, 0 = invalid.

        Returns
        -------
        (rows, cols) float32 or float64

        Raises
        ------
        ValueError
            An array has another shape or dtype.
        """
        _check_array(f"band '{self.band.name}'", pixels, self.band.dtype, pixels.shape)
        masks = [(f"mask of band '{self.band.name}'", valid), ("scene mask", clear)]
        for what, mask in masks:
            if mask is not None:
                _check_array(what, mask, "uint8", pixels.shape)
        has_nodata, mask, fit = self._nodata is not None, valid is not None, clear is not None
        kernel = _compile(
            _plane_source(self.band, has_nodata, mask, fit), _plane_signature(self.band, has_nodata, mask + fit)
        )
        inputs = [np.ascontiguousarray(array) for array in (pixels, valid, clear) if array is not None]
        plane = np.empty(pixels.shape, self.dtype)
        nodata = [self._nodata] if has_nodata else []

        def block(first: int, last: int) -> int:
            kernel(first, last, *inputs, plane, *nodata, self._radiometry)
            return 0

        _over_rows(block, pixels.shape[0], self.threads)
        return plane


class WarpKernel:
    """All products of one scene from planes, resampled on the way.

    A pixel of a product is invalid where a plane that its formula names gives an invalid pixel, or where the formula
    gives NaN or infinity.

    Parameters
    ----------
    planes : tuple of PlaneInput
    outputs : tuple of Output
    threads : int, optional
        Number of threads; by default as many as this process may use cores.

    Raises
    ------
    ValueError
        Two planes of one name, no product, or a formula that names another plane.

    Notes
    -----
    Resampling in float64 (see `resample`), rounded once to float32 for formulas; a formula that is one name takes the
    float64 value. Formulas and packing as in `Kernel`.
    """

    def __init__(self, planes: tuple[PlaneInput, ...], outputs: tuple[Output, ...], threads: int | None = None):
        self.planes, self.outputs = tuple(planes), tuple(outputs)
        _check_names([plane.name for plane in self.planes], self.outputs)
        self.threads = threads or _cores()
        self._packing = np.array([_packing(output) for output in self.outputs], np.float64)
        self._kernel = _compile(_warp_source(self.planes, self.outputs), _warp_signature(self.planes, self.outputs))

    def __call__(
        self,
        planes: Sequence[np.ndarray],
        origins: Sequence[tuple[int, int]],
        affines: Sequence[tuple[float, ...]],
        centres: tuple[np.ndarray, np.ndarray] | None,
        corners: tuple[np.ndarray, np.ndarray] | None,
        out: Sequence[np.ndarray],
    ) -> np.ndarray:
        """Compute a window of the target.

        Parameters
        ----------
        planes : sequence of 2-D arrays
            One a plane, of its dtype: the pixels that the window needs (`resample.source_window`), or more.
        origins : sequence of (row, col)
            First pixel of each array in its raster.
        affines : sequence of (a, b, c, d, e, f)
            From the coordinates to those of each raster: x' = (a*x + b*y) + c, y' = (d*x + e*y) + f.
        centres : x, y of (rows, cols) float64, or None
            Coordinates of the pixels' centres; None where no method needs them.
        corners : x, y of (rows + 1, cols + 1) float64, or None
            Coordinates of the pixels' corners; None where no method needs them.
        out : sequence of (rows, cols) arrays
            One a product, of the product's dtype; filled.

        Returns
        -------
        (products, 4) int64
            As of `Kernel`.

        Raises
        ------
        ValueError
            An array is missing, has another shape or dtype, or does not hold a pixel of the raster that is needed.
        """
        self._check(planes, origins, affines, centres, corners, out)
        arrays = [np.ascontiguousarray(plane) for plane in planes]
        nothing = np.empty((1, 1))
        coordinates = [np.ascontiguousarray(a) for pair in (centres, corners) for a in pair or (nothing, nothing)]
        places = np.array(
            [(*origin, *plane.shape) for origin, plane in zip(origins, self.planes, strict=True)], np.int64
        )
        moves = np.array(affines, np.float64)
        with _contiguous(out) as targets:

            def block(first: int, last: int) -> np.ndarray:
                counts = np.zeros((len(self.outputs) + len(self.planes), len(COUNTS)), np.int64)
                self._kernel(first, last, *arrays, *coordinates, *targets, places, moves, self._packing, counts)
                return counts

            counts = _over_rows(block, targets[0].shape[0], self.threads)
        for plane, origin, array, row in zip(self.planes, origins, planes, counts[len(self.outputs) :], strict=True):
            if row[0]:
                raise ValueError(
                    f"{row[0]} pixels need pixels of plane '{plane.name}' ({plane.method}) outside of the "
                    f"{array.shape} given from {tuple(origin)} on, of a raster of {plane.shape}"
                )
        return counts[: len(self.outputs)]

    def _check(self, planes, origins, affines, centres, corners, out) -> None:
        numbers = (len(planes), len(origins), len(affines), len(out))
        if numbers != (*[len(self.planes)] * 3, len(self.outputs)):
            raise ValueError(
                f"{len(self.planes)} planes and {len(self.outputs)} products need as many arrays, origins and affines; "
                f"there are {numbers[0]} planes, {numbers[1]} origins, {numbers[2]} affines and {numbers[3]} products"
            )
        rows, cols = shape = np.shape(out[0])
        for plane, array, (row, col) in zip(self.planes, planes, origins, strict=True):
            _check_array(f"plane '{plane.name}'", array, plane.dtype, array.shape)
            if not (0 <= row <= plane.shape[0] - array.shape[0] and 0 <= col <= plane.shape[1] - array.shape[1]):
                raise ValueError(
                    f"plane '{plane.name}' is {array.shape} from {(row, col)} on; its raster is {plane.shape}"
                )
        for output, array in zip(self.outputs, out, strict=True):
            _check_array(f"product '{output.name}'", array, output.dtype, shape)
        needs = {plane.by_area for plane in self.planes}
        for what, pair, wanted, need in [
            ("centres", centres, shape, False in needs),
            ("corners", corners, (rows + 1, cols + 1), True in needs),
        ]:
            if pair is None and need:
                raise ValueError(f"coordinates of {what} are missing")
            for array in pair or ():
                _check_array(f"coordinates of {what}", array, "float64", wanted)


def _check_names(names: list[str], outputs: tuple[Output, ...]) -> None:
    if len(set(names)) < len(names):
        raise ValueError(f"two bands have one name: {', '.join(names)}")
    if not outputs:
        raise ValueError("no product to compute")
    for output in outputs:
        unknown = sorted(set(output.expression.names) - set(names))
        if unknown:
            raise ValueError(f"product '{output.name}' names band '{unknown[0]}'; there are {', '.join(names)}")


def _check_array(what: str, array: np.ndarray, dtype: str, shape: tuple[int, ...]) -> None:
    if array.ndim != 2:
        raise ValueError(f"arrays are (rows, cols); {what} has {array.ndim} dimensions")
    if array.shape != shape or array.dtype != np.dtype(dtype):
        raise ValueError(f"{what} is {array.dtype} {array.shape}; {dtype} {shape} is wanted")


@contextlib.contextmanager
def _contiguous(out: Sequence[np.ndarray]):
    """The arrays, or stand-ins in C order that are copied to them at the end."""
    targets = [array if array.flags.c_contiguous else np.empty_like(array, order="C") for array in out]
    yield targets
    for array, target in zip(out, targets, strict=True):
        if target is not array:
            array[...] = target


def tile_stats(pixels: np.ndarray, nodata: float | int | None) -> tuple[int, float, float, float]:
    """Statistics of the valid pixels of a tile.

    Parameters
    ----------
    pixels : (rows, cols) array of an output dtype
    nodata : int, float or None
        Left out; NaN and infinity always are.

    Returns
    -------
    n, min, max, sum : int, float, float, float
        Of the stored numbers; the sum is made in float64, pixel after pixel in row-major order, so that it is the
        same on every run.
        Without a valid pixel: 0, NaN, NaN, 0.
    """
    native = native_nodata(nodata, pixels.dtype)
    kernel = _stats_kernel(pixels.dtype.name)
    return kernel(pixels, native is not None, pixels.dtype.type(0) if native is None else native)


@functools.cache
def _stats_kernel(dtype: str):
    scalar = getattr(types, dtype)
    return njit(_stats, (types.Array(scalar, 2, "A", readonly=True), types.boolean, scalar))


def _stats(pixels, has_nodata, nodata):
    n = 0
    total = 0.0
    low = np.inf
    high = -np.inf
    for row in range(pixels.shape[0]):
        for col in range(pixels.shape[1]):
            stored = pixels[row, col]
            value = np.float64(stored)
            if np.isfinite(value) and not (has_nodata and stored == nodata):
                n += 1
                total += value
                low = min(low, value)
                high = max(high, value)
    if n == 0:
        return 0, np.nan, np.nan, 0.0
    return n, low, high, total


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):  # not on macOS
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _over_rows(block, rows: int, threads: int) -> np.ndarray:
    """Sum of `block(first, last)` over blocks of rows, at most `threads` at a time."""
    if threads == 1 or rows < 2:
        return block(0, rows)
    # more blocks than threads: one slow core does not hold up the others
    edges = np.linspace(0, rows, min(rows, 4 * threads) + 1).astype(int).tolist()
    with ThreadPoolExecutor(threads) as pool:
        return sum(pool.map(block, edges[:-1], edges[1:]))


def _packing(output: Output) -> tuple[float, float, float, float]:
    """scale, offset, nodata, and what stands for a valid pixel that hits nodata."""
    if not output.packed:
        return 1.0, 0.0, np.nan, np.nan
    nodata = int(output.nodata)
    neighbour = nodata + 1 if nodata == np.iinfo(output.dtype).min else nodata - 1
    return output.scale, output.offset, nodata, neighbour


def _arrays(kinds, dtypes, readonly: bool) -> list:
    # read-only in the signature takes writable arrays too, so one compilation serves both
    return [types.Array(getattr(types, dtype), kinds, "C", readonly=readonly) for dtype in dtypes]


def _signature(bands, outputs, nodata, masks, clear) -> tuple:
    """Types of the generated function's arguments, in their order."""
    read = _arrays(2, [band.dtype for band in bands] + ["uint8"] * (sum(masks) + clear), readonly=True)
    write = _arrays(2, [output.dtype for output in outputs], readonly=False)
    scalars = [getattr(types, band.dtype) for band, value in zip(bands, nodata, strict=True) if value is not None]
    tables = _arrays(2, ["float64", "float64", "int64"], readonly=False)
    return (types.int64, types.int64, *read, *write, *scalars, *tables)


def _plane_signature(band, nodata: bool, masks: int) -> tuple:
    read = _arrays(2, [band.dtype] + ["uint8"] * masks, readonly=True)
    scalars = [getattr(types, band.dtype)] if nodata else []
    tables = _arrays(2, [band.plane_dtype, "float64"], readonly=False)
    return (types.int64, types.int64, *read, tables[0], *scalars, tables[1])


def _warp_signature(planes, outputs) -> tuple:
    read = _arrays(2, [plane.dtype for plane in planes] + ["float64"] * 4, readonly=True)
    write = _arrays(2, [output.dtype for output in outputs], readonly=False)
    tables = _arrays(2, ["int64", "float64", "float64", "int64"], readonly=False)
    return (types.int64, types.int64, *read, *write, *tables)


_HEAD = """\
# Generated by cogmill.kernels.cpu; its name is the digest of its text.
import numpy as np

f4 = np.float32
f8 = np.float64
NAN = np.float32(np.nan)
LARGEST = np.float32(3.4028234663852886e38)
"""


def _module(lines: list[str], chunk: int = 4096, more: str = "") -> str:
    """Text of a file with the function; lines of `chunk` pixels stay in the cache."""
    head = f"{_HEAD}CHUNK = {chunk}\n{more}"
    return head + "\n\n" + "\n".join(lines) + "\n"


def _source(bands, outputs, nodata, masks, clear) -> str:
    """Source of the kernel: bands to lines of float32 with NaN for invalid, then product by product.

    One loop over all bands and products would be simpler, but with more than a few arrays LLVM gives up proving that
    they do not overlap and leaves the loop scalar.
    """
    numbers = range(len(bands))
    # packed as they are, bands are needed in float64
    wide = {
        bands[i].name for i in numbers for o in outputs if o.bare and o.packed and bands[i].name in o.expression.names
    }
    narrow = {name for o in outputs if not (o.bare and o.packed) for name in o.expression.names}
    used = [i for i in numbers if bands[i].name in wide | narrow]
    arguments = [
        "first", "last", *(f"pixels{i}" for i in numbers), *(f"valid{i}" for i in numbers if masks[i]),
        *(["clear"] if clear else []), *(f"out{k}" for k in range(len(outputs))),
        *(f"nodata{i}" for i in numbers if nodata[i]), "radiometry", "packing", "counts",
    ]  # fmt: skip
    lines = [f"def kernel({', '.join(arguments)}):"]
    lines += [f"    line{i} = np.empty(CHUNK, f4)" for i in used if bands[i].name in narrow]
    lines += [f"    wide{i} = np.empty(CHUNK, f8)" for i in used if bands[i].name in wide]
    lines += [line for i in used for line in _radiometry_lines(i, bands[i])]
    lines += [line for k, output in enumerate(outputs) for line in _packing_arguments(k, output)]
    lines += _loop_lines(f"pixels{used[0]}")
    for i in used:
        targets = [f"line{i}"] if bands[i].name in narrow else []
        targets += [f"wide{i}"] if bands[i].name in wide else []
        lines += _band_lines(i, bands[i], nodata[i], masks[i], clear, targets)
    variables = {band.name: f"x{i}" for i, band in enumerate(bands)}
    for k, output in enumerate(outputs):
        value = "wide{}[c]" if output.bare and output.packed else "line{}[c]"
        lines += _output_lines(k, output, variables, value)
    return _module(lines)


def _plane_source(band: BandInput, nodata: bool, mask: bool, clear: bool) -> str:
    """Source of the function that makes a plane, by the lines that the kernel has for a band."""
    arguments = ["first", "last", "pixels0", *(["valid0"] if mask else []), *(["clear"] if clear else []), "out0"]
    arguments += [*(["nodata0"] if nodata else []), "radiometry"]
    target = "wide0" if band.plane_dtype == "float64" else "line0"
    lines = [f"def kernel({', '.join(arguments)}):", *_radiometry_lines(0, band), *_loop_lines("pixels0")]
    lines += [f"            {target} = out0[row, left:right]"]
    lines += _band_lines(0, band, nodata, mask, clear, [target])
    return _module(lines)


def _warp_source(planes, outputs) -> str:
    """Source of the warp: per chunk of a row, planes to lines of float64, then product by product."""
    used = [i for i, plane in enumerate(planes) if any(plane.name in o.expression.names for o in outputs)]
    arguments = [
        "first", "last", *(f"plane{i}" for i in range(len(planes))), "centres_x", "centres_y", "corners_x", "corners_y",
        *(f"out{k}" for k in range(len(outputs))), "places", "moves", "packing", "counts",
    ]  # fmt: skip
    lines = [f"def kernel({', '.join(arguments)}):"]
    lines += [f"    line{i} = np.empty(CHUNK, f8)" for i in used]
    lines += [f"    {name} = np.empty(CHUNK, f8)" for name in ("x", "y", "x_end", "y_end")]
    lines += [line for k, output in enumerate(outputs) for line in _packing_arguments(k, output)]
    lines += [*_loop_lines("out0"), "            n = right - left"]
    for i in used:
        lines += _plane_lines(i, planes[i], len(outputs))
    variables = {plane.name: f"x{i}" for i, plane in enumerate(planes)}
    for k, output in enumerate(outputs):
        lines += _output_lines(k, output, variables, "line{}[c]" if output.bare else "f4(line{}[c])")
    # Numba does not see that a function which the kernel calls has changed
    digest = f"# resample.py: {_digest(resample.__file__)}\nfrom cogmill.kernels import resample\n"
    return _module(lines, 1024, digest)


@functools.cache
def _digest(path: str) -> str:
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()


def _loop_lines(array: str) -> list[str]:
    return [
        f"    cols = {array}.shape[1]",
        "    for row in range(first, last):",
        "        for left in range(0, cols, CHUNK):",
        "            right = min(left + CHUNK, cols)",
    ]


def _radiometry_lines(i: int, band: BandInput) -> list[str]:
    return [f"    scale{i} = radiometry[{i}, 0]", f"    offset{i} = radiometry[{i}, 1]"] if band.scaled else []


def _packing_arguments(k: int, output: Output) -> list[str]:
    names = ("divisor", "base", "fill", "beside") if output.packed else ()
    return [f"    {name}{k} = packing[{k}, {column}]" for column, name in enumerate(names)]


def _band_lines(i: int, band: BandInput, nodata: bool, mask: bool, clear: bool, targets: list[str]) -> list[str]:
    """A band's pixels to lines of values: `line` is rounded to float32, `wide` is not."""
    tests = [f"(stored != nodata{i})"] if nodata else []
    if band.scaled or band.dtype.startswith("float"):
        tests += ["(abs(x) <= LARGEST)"]  # false for NaN too
    tests += ["(mask[c] != 0)"] if mask else []
    tests += ["(fit[c] != 0)"] if clear else []
    exact = f"f8(stored) * scale{i} + offset{i}" if band.scaled else "f8(stored)"
    # a 64-bit integer is rounded once
    value = f"f4({exact})" if band.scaled else "f4(stored)"
    # & and not `and`: no branch, so that the loop becomes vector instructions
    return [
        " " * 12 + line
        for line in (
            f"source = pixels{i}[row, left:right]",
            *([f"mask = valid{i}[row, left:right]"] if mask else []),
            *(["fit = clear[row, left:right]"] if clear else []),
            "for c in range(right - left):",
            "    stored = source[c]",
            f"    x = {value}",
            *([f"    good = {' & '.join(tests)}"] if tests else []),
            *(
                f"    {target}[c] = {number} if good else NAN" if tests else f"    {target}[c] = {number}"
                for target in targets
                for number in ["x" if target.startswith("line") else exact]
            ),
        )
    ]


def _plane_lines(i: int, plane: PlaneInput, outputs: int) -> list[str]:
    function = f"resample.{resample.FUNCTIONS[plane.method].__name__}"
    place = f"plane{i}, places[{i}, 0], places[{i}, 1], places[{i}, 2], places[{i}, 3]"
    corner = "corners" if plane.by_area else "centres"
    lines = [f"resample.place(moves[{i}], {corner}_x[row, left:right], {corner}_y[row, left:right], x, y)"]
    coordinates = "x[:n], y[:n]"
    if plane.by_area:
        lines += [
            f"resample.place(moves[{i}], corners_x[row + 1, left + 1 : right + 1], "
            "corners_y[row + 1, left + 1 : right + 1], x_end, y_end)"
        ]
        coordinates += ", x_end[:n], y_end[:n]"
    lines += [f"counts[{outputs + i}, 0] += {function}(line{i}, {place}, {coordinates})"]
    return [" " * 12 + line for line in lines]


def _output_lines(k: int, output: Output, variables: dict[str, str], read: str) -> list[str]:
    """A product from lines; `read` is what a band's value is made of."""
    names = [variables[name] for name in output.expression.names]
    sequence, result = steps(output.expression, variables)
    body = [f"{x} = {read.format(x[1:])}" for x in names]
    body += python_lines(sequence)
    body += [f"value = {python_operand(result)}"]
    body += ["known = " + " & ".join(f"({x} == {x})" for x in names)]
    if output.packed:
        body += _packing_lines(k, output.dtype)
    else:
        body += ["number = f4(value)", "good = known & (abs(number) <= LARGEST)", "target[c] = number if good else NAN"]
    body += ["valid += good", "infinite += known & ~good"]
    # `~` of a bool is a bool in Numba
    return [
        " " * 12 + line
        for line in (
            f"target = out{k}[row, left:right]",
            "valid = 0",
            "clamped = 0",
            "infinite = 0",
            "for c in range(right - left):",
            *("    " + line for line in body),
            f"counts[{k}, 0] += valid",
            f"counts[{k}, 1] += right - left - valid",
            f"counts[{k}, 2] += clamped",
            f"counts[{k}, 3] += infinite",
        )
    ]


def _packing_lines(k: int, dtype: str) -> list[str]:
    """Round, limit, keep off nodata; the last choice is made in float64, so that only numbers of the dtype are cast.

    The limits are whole numbers, so limiting after rounding gives what limiting before it would.
    """
    limits = np.iinfo(dtype)
    return [
        f"q = (f8(value) - base{k}) / divisor{k}",
        "good = known & (abs(q) <= 1.7976931348623157e308)",
        "whole = np.floor(q + 0.5)",
        f"kept = min(max(whole, {float(limits.min)!r}), {float(limits.max)!r})",
        f"kept = beside{k} if kept == fill{k} else kept",
        "clamped += good & (kept != whole)",
        f"target[c] = np.{dtype}(kept if good else fill{k})",
    ]


@functools.lru_cache(maxsize=256)
def _compile(source: str, signature: tuple):
    text = source + "".join(f"# {kind}\n" for kind in signature)
    name = "cogmill_kernel_" + hashlib.sha256(text.encode()).hexdigest()[:32]
    path = _written(cache_folder() / "kernels" / f"{name}.py", text)
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    sys.modules[name] = module  # Numba's cache looks it up there
    return njit(module.kernel, signature)


def _written(path: Path, text: str) -> Path:
    """Write a generated file unless it is there; two processes may do so at once."""
    try:
        if path.read_text(encoding="utf-8") == text:
            return path
    except (OSError, UnicodeDecodeError):
        pass
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=path.parent, suffix=".tmp", delete=False, encoding="utf-8") as file:
        file.write(text)
    # Numba compares the time of the source: equal text must have an equal time, whoever wrote it
    os.utime(file.name, (1_000_000_000, 1_000_000_000))
    os.replace(file.name, path)
    return path

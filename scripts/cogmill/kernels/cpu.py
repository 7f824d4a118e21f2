"""Products from bands on the CPU: one generated function for all products of a scene, compiled by Numba.

Rows are shared out to threads of our own, not to Numba's: Numba's threading layers abort a process that forks or that
calls from two threads. Each pixel depends on itself alone, and counts are whole numbers, so the bits are the same for
any number of threads and any windows.
"""

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
from cogmill.kernels import cache_folder, njit
from cogmill.kernels.codegen import python_lines, python_operand, steps
from cogmill.masks import native_nodata

BAND_DTYPES = ("uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64", "float32", "float64")
OUTPUT_DTYPES = ("float32", "int8", "uint8", "int16", "uint16", "int32", "uint32")
COUNTS = ("valid", "invalid", "clamped", "infinite")


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
    `codegen`. Packed: in float64, q = (value - offset) / scale, then floor(q + 0.5), limited to the dtype. A valid
    pixel that would be stored as nodata gets nodata + 1, or nodata - 1 where nodata is the dtype's largest number.
    Float32 products hold one NaN (0x7fc00000) where invalid.
    """

    def __init__(self, bands: tuple[BandInput, ...], outputs: tuple[Output, ...], threads: int | None = None):
        self.bands, self.outputs = tuple(bands), tuple(outputs)
        names = [band.name for band in self.bands]
        if len(set(names)) < len(names):
            raise ValueError(f"two bands have one name: {', '.join(names)}")
        if not self.outputs:
            raise ValueError("no product to compute")
        for output in self.outputs:
            unknown = sorted(set(output.expression.names) - set(names))
            if unknown:
                raise ValueError(f"product '{output.name}' names band '{unknown[0]}'; there are {', '.join(names)}")
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
        targets = [array if array.flags.c_contiguous else np.empty_like(array, order="C") for array in out]
        nodata = [value for value in self._nodata if value is not None]

        def block(first: int, last: int) -> np.ndarray:
            counts = np.zeros((len(self.outputs), len(COUNTS)), np.int64)
            kernel(first, last, *inputs, *targets, *nodata, self._radiometry, self._packing, counts)
            return counts

        counts = _over_rows(block, shape[0], self.threads)
        for array, target in zip(out, targets, strict=True):
            if target is not array:
                array[...] = target
        return counts

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
            if array.shape != shape or array.dtype != np.dtype(dtype):
                raise ValueError(f"{what} is {array.dtype} {array.shape}; {dtype} {shape} is wanted")
        return shape

    def _compiled(self, masks: tuple[bool, ...], clear: bool):
        key = (masks, clear)
        if key not in self._kernels:
            source = _source(self.bands, self.outputs, tuple(n is not None for n in self._nodata), masks, clear)
            self._kernels[key] = _compile(source, _signature(self.bands, self.outputs, self._nodata, masks, clear))
        return self._kernels[key]


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
    neighbour = nodata - 1 if nodata == np.iinfo(output.dtype).max else nodata + 1
    return output.scale, output.offset, nodata, neighbour


def _signature(bands, outputs, nodata, masks, clear) -> tuple:
    """Types of the generated function's arguments, in their order."""
    # read-only in the signature takes writable arrays too, so one compilation serves both
    read = [types.Array(getattr(types, band.dtype), 2, "C", readonly=True) for band in bands]
    read += [types.Array(types.uint8, 2, "C", readonly=True)] * (sum(masks) + clear)
    write = [types.Array(getattr(types, output.dtype), 2, "C") for output in outputs]
    scalars = [getattr(types, band.dtype) for band, value in zip(bands, nodata, strict=True) if value is not None]
    table = types.Array(types.float64, 2, "C")
    counts = types.Array(types.int64, 2, "C")
    return (types.int64, types.int64, *read, *write, *scalars, table, table, counts)


_HEAD = """\
# Generated by cogmill.kernels.cpu; its name is the digest of its text.
import numpy as np

f4 = np.float32
f8 = np.float64
NAN = np.float32(np.nan)
LARGEST = np.float32(3.4028234663852886e38)
CHUNK = 4096
"""


def _source(bands, outputs, nodata, masks, clear) -> str:
    """Source of the kernel: bands to lines of float32 with NaN for invalid, then product by product.

    One loop over all bands and products would be simpler, but with more than a few arrays LLVM gives up proving that
    they do not overlap and leaves the loop scalar. Lines of 4096 pixels stay in the cache.
    """
    used = sorted({i for i, band in enumerate(bands) for o in outputs if band.name in o.expression.names})
    numbers = range(len(bands))
    arguments = [
        "first", "last", *(f"pixels{i}" for i in numbers), *(f"valid{i}" for i in numbers if masks[i]),
        *(["clear"] if clear else []), *(f"out{k}" for k in range(len(outputs))),
        *(f"nodata{i}" for i in numbers if nodata[i]), "radiometry", "packing", "counts",
    ]  # fmt: skip
    lines = [f"def kernel({', '.join(arguments)}):"]
    lines += [f"    line{i} = np.empty(CHUNK, f4)" for i in used]
    for i in used:
        if bands[i].scaled:
            lines += [f"    scale{i} = radiometry[{i}, 0]", f"    offset{i} = radiometry[{i}, 1]"]
    for k, output in enumerate(outputs):
        if output.packed:
            names = ("divisor", "base", "fill", "beside")
            lines += [f"    {name}{k} = packing[{k}, {column}]" for column, name in enumerate(names)]
    lines += [f"    cols = pixels{used[0]}.shape[1]"]
    lines += ["    for row in range(first, last):", "        for left in range(0, cols, CHUNK):"]
    lines += ["            right = min(left + CHUNK, cols)"]
    for i in used:
        lines += _band_lines(i, bands[i], nodata[i], masks[i], clear)
    variables = {band.name: f"x{i}" for i, band in enumerate(bands)}
    for k, output in enumerate(outputs):
        lines += _output_lines(k, output, variables)
    return _HEAD + "\n\n" + "\n".join(lines) + "\n"


def _band_lines(i: int, band: BandInput, nodata: bool, mask: bool, clear: bool) -> list[str]:
    tests = [f"(stored != nodata{i})"] if nodata else []
    if band.scaled or band.dtype.startswith("float"):
        tests += ["(abs(x) <= LARGEST)"]  # false for NaN too
    tests += ["(mask[c] != 0)"] if mask else []
    tests += ["(fit[c] != 0)"] if clear else []
    value = f"f4(f8(stored) * scale{i} + offset{i})" if band.scaled else "f4(stored)"
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
            f"    line{i}[c] = x if {' & '.join(tests)} else NAN" if tests else f"    line{i}[c] = x",
        )
    ]


def _output_lines(k: int, output: Output, variables: dict[str, str]) -> list[str]:
    names = [variables[name] for name in output.expression.names]
    sequence, result = steps(output.expression, variables)
    body = [f"{x} = line{x[1:]}[c]" for x in names]
    body += python_lines(sequence)
    body += [f"value = {python_operand(result)}"]
    body += ["known = " + " & ".join(f"({x} == {x})" for x in names)]
    if output.packed:
        body += _packing_lines(k, output.dtype)
    else:
        body += ["good = known & (abs(value) <= LARGEST)", "target[c] = value if good else NAN"]
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

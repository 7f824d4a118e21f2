"""Products on another grid than their bands': source windows of target blocks, planes, and the fused warp kernel.

A block is a tile of the target. Its pixels' coordinates say which window of each band it needs; the windows become
planes (values after mask and radiometry, NaN where invalid), and one kernel resamples them, evaluates the formulas and
packs. Each pixel depends on its own coordinates alone, so blocks, windows and threads change no bit.
"""

import contextlib
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from cogmill.cog.reader import CogReader
from cogmill.controlgrid import ControlGrid
from cogmill.errors import SceneError
from cogmill.grids import TILE, GridSpec, Window, windows
from cogmill.indices import parse_formula
from cogmill.kernels.coords import affine_coordinates, interpolate_nodes
from cogmill.kernels.cpu import BandInput, Kernel, Output, PlaneInput, PlaneKernel, WarpKernel
from cogmill.kernels.resample import source_window
from cogmill.ledger import decode_number
from cogmill.pixels import add_read_seconds, ahead, band_input, empty_outputs, output
from cogmill.projections import Operation, Placement
from cogmill.resampling import ALIASING, AREA_METHODS, MAX_RATIO, POINT_METHODS, band_method
from cogmill.store import Inputs, Masks

IDENTITY = (1.0, 0.0, 0.0, 0.0, 1.0, 0.0)
LEAST_BLOCK_BYTES = 16 << 20  # a tile's worth of a few bands, on however many threads
BANDS_FIRST = "bands_then_index"


@dataclass(frozen=True)
class PlaneSpec:
    """A plane to be resampled: the value of a band, or with `order: index_then_warp` of a formula."""

    variable: str
    method: str
    source: int
    bands: tuple[str, ...]
    product: str | None = None


def band_methods(spec: dict, bands: dict) -> dict[str, str]:
    """{band of the formula: method that it is resampled by}."""
    return {name: band_method(spec["resampling"], bands[name]["kind"]) for name in spec["expression"].names}


def product_method(spec: dict, bands: dict) -> str:
    """Method for a product whose formula is evaluated before the warp: what its bands and its kind have in common."""
    methods = {*band_methods(spec, bands).values(), band_method(spec["resampling"], spec["kind"])}
    return methods.pop() if len(methods) == 1 else "nearest"


def warp_of(spec: dict, bands: dict, order: str) -> dict:
    """How a product is resampled, as its key and its tags have it: {"order", "resampling": {band: method}}.

    With `index_then_warp` the method is that of the index, under each band that it is made of.
    """
    methods = band_methods(spec, bands)
    if order != BANDS_FIRST:
        methods = dict.fromkeys(methods, product_method(spec, bands))
    return {"order": order, "resampling": methods}


def check_aliasing(inputs: Inputs, specs: dict, warp: dict) -> None:
    """SceneError `aliasing` where interpolation would skip source pixels and nobody allowed it."""
    if warp["allow_aliasing"] or inputs.grid["operation"] == "identity":
        return
    for product, spec in specs.items():
        for band, method in warp_of(spec, inputs.bands, warp["order"])["resampling"].items():
            ratio = inputs.source_of(band)["ratio"]
            if method in ALIASING and ratio > MAX_RATIO:
                raise SceneError(
                    f"product {product!r}: band {band!r} has {ratio:.3g} pixels in each direction on a pixel of the "
                    f"target, and {method} looks at the nearest few only (at most {MAX_RATIO} are allowed): set "
                    "warp.resampling to average, min, max, median or mode, make grid.resolution finer, or set "
                    "warp.allow_aliasing",
                    "aliasing",
                )


def plan(inputs: Inputs, specs: dict, order: str) -> tuple[list[PlaneSpec], list[Output]]:
    """Planes that products need, each once, and the products as formulas over them.

    Raises
    ------
    SceneError
        `grid_mismatch`: a formula that is to be evaluated before the warp names bands of two grids.
    """
    sources = {band: i for i, source in enumerate(inputs.grid["sources"]) for band in source["bands"]}
    planes, outputs = {}, []
    for product, spec in specs.items():
        # a band alone is its own index, and as a band keeps numbers that float32 does not hold
        if order == BANDS_FIRST or spec["expression"].node[0] == "name":
            methods = warp_of(spec, inputs.bands, order)["resampling"]
            for band, method in methods.items():
                variable = f"{band}_{method}"
                planes[variable] = PlaneSpec(variable, method, sources[band], (band,))
            names = {band: f"{band}_{method}" for band, method in methods.items()}
            outputs.append(output(product, spec, spec["expression"].renamed(names)))
            continue
        bands = spec["expression"].names
        if len({sources[band] for band in bands}) > 1:
            raise SceneError(
                f"product {product!r} cannot be computed before the warp: its bands {', '.join(bands)} lie on grids of "
                "different resolution (grid mismatch). Set warp.order to bands_then_index",
                "grid_mismatch",
            )
        variable = f"p{len(outputs)}"
        method = product_method(spec, inputs.bands)
        planes[variable] = PlaneSpec(variable, method, sources[bands[0]], tuple(bands), product)
        outputs.append(output(product, spec, parse_formula(variable)))
    return list(planes.values()), outputs


class Coordinates:
    """Where target pixels lie in the frame that the affines of the sources start from.

    For operation affine that is the target itself; for grid and exact it is sources[0].
    """

    def __init__(self, record: dict, folder: Path):
        self.operation = record["operation"]
        self.placement = self.nodes = None
        if self.operation in ("grid", "exact"):
            warp = record["warp"]
            operation = warp["projection"] and Operation.from_json(warp["projection"])
            source = GridSpec.from_json(record["sources"][0]["grid"])
            self.placement = Placement(source, GridSpec.from_json(record["grid"]), operation)
        if self.operation == "grid":
            self.nodes = ControlGrid.load(folder / warp["file"], warp["checksum"])

    def of(self, window: Window, corners: bool) -> tuple[np.ndarray, np.ndarray]:
        """x, y float64 of pixel centres (rows, cols), or of pixel corners (rows + 1, cols + 1)."""
        box = (window.row, window.col, window.rows, window.cols)
        if self.operation == "affine":
            return affine_coordinates(IDENTITY, box, corners)
        if self.operation == "exact":
            rows, cols = _positions(window, corners)
            return self.placement.to_source(*np.broadcast_arrays(cols[np.newaxis, :], rows[:, np.newaxis]))
        x, y = interpolate_nodes(self.nodes.x, self.nodes.y, self.nodes.step, box, corners)
        self._exact_cells(window, corners, x, y)
        return x, y

    def _exact_cells(self, window: Window, corners: bool, x: np.ndarray, y: np.ndarray) -> None:
        rows, cols = _positions(window, corners)
        cell_rows, cell_cols = (
            np.maximum(np.floor((edge - 0.5) / self.nodes.step), 0).astype(np.int64) for edge in (rows, cols)
        )
        first_row, first_col = cell_rows[0], cell_cols[0]
        part = self.nodes.exact[first_row : cell_rows[-1] + 1, first_col : cell_cols[-1] + 1]
        if part.any():
            wanted = part[np.ix_(cell_rows - first_row, cell_cols - first_col)]
            at_row, at_col = np.nonzero(wanted)
            x[wanted], y[wanted] = self.placement.to_source(cols[at_col], rows[at_row])


def _positions(window: Window, corners: bool) -> tuple[np.ndarray, np.ndarray]:
    """Pixel coordinates (rows, cols) of the centres, or corners, of a window."""
    more, shift = (1, 0.0) if corners else (0, 0.5)
    return (
        window.row + np.arange(window.rows + more) + shift,
        window.col + np.arange(window.cols + more) + shift,
    )


class Warp:
    """Products of bands that are resampled onto the target grid; a context manager.

    Parameters
    ----------
    inputs : Inputs
    folder : Path
        Of the grid record.
    specs : dict
        {product: {"expression", "resampling", "dtype", ...}}.
    order : str
        bands_then_index or index_then_warp.
    threads : int
    budget : int
        Bytes: half of them for decoded tiles, a quarter for the source windows of the blocks at work.
    seconds : dict
        read, decode and compute grow by the wall time that the stages took.
    """

    def __init__(self, inputs: Inputs, folder: Path, specs: dict, order: str, threads: int, budget: int, seconds: dict):
        self.inputs, self.specs, self.threads, self.seconds = inputs, specs, threads, seconds
        self.planes, outputs = plan(inputs, specs, order)
        self.coordinates = Coordinates(inputs.grid, folder)
        self.sources = [GridSpec.from_json(source["grid"]) for source in inputs.grid["sources"]]
        self.affines = [tuple(source["affine"]) for source in inputs.grid["sources"]]
        self.methods = {plane.method for plane in self.planes}
        self.used = sorted({plane.source for plane in self.planes})
        bands = sorted({band for plane in self.planes for band in plane.bands})
        self.block_bytes = max(LEAST_BLOCK_BYTES, budget // 4 // threads)
        cache = max(8 << 20, budget // 2 // max(1, len(bands) + len(self.used) * len(inputs.masks)))
        with contextlib.ExitStack() as stack:
            self.bands = {band: stack.enter_context(inputs.open(band, 1, cache)) for band in bands}
            self.masks = {i: stack.enter_context(Masks(inputs, inputs.grid["sources"][i], 1, cache)) for i in self.used}
            self.pool = stack.enter_context(ThreadPoolExecutor(threads))
            self._stack = stack.pop_all()
        self.makers = {plane.variable: plane_maker(inputs, specs, plane) for plane in self.planes}
        self.kernel = WarpKernel(
            tuple(
                PlaneInput(p.variable, self.makers[p.variable].dtype, p.method, self.sources[p.source].shape)
                for p in self.planes
            ),
            tuple(outputs),
            threads=1,
        )

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._stack.close()

    @property
    def readers(self) -> list[CogReader]:
        return [*self.bands.values(), *(reader for masks in self.masks.values() for reader in masks.readers)]

    def products(self, cut: Iterator[Window]) -> Iterator[tuple[Window, list[np.ndarray], np.ndarray]]:
        """Yield (window, arrays of the products, counts); the next one is computed while the caller has this one."""
        return map(self._window, cut)

    def _window(self, window: Window) -> tuple[Window, list[np.ndarray], np.ndarray]:
        out, clock, spent = empty_outputs(self.specs, window), time.perf_counter(), self._spent()
        blocks = [
            Window(row, col, min(TILE, window.row + window.rows - row), min(TILE, window.col + window.cols - col))
            for row in range(window.row, window.row + window.rows, TILE)
            for col in range(window.col, window.col + window.cols, TILE)
        ]

        def part(block: Window) -> np.ndarray:
            r, c = block.row - window.row, block.col - window.col
            return self._block(block, [array[r : r + block.rows, c : c + block.cols] for array in out])

        counts = sum(self.pool.map(part, blocks))
        self._share(time.perf_counter() - clock, spent)
        return window, out, counts

    def _spent(self) -> tuple[float, float]:
        return tuple(sum(reader.seconds[stage] for reader in self.readers) for stage in ("read", "decode"))

    def _share(self, wall: float, before: tuple[float, float]) -> None:
        """Share the wall time of a window out to its stages, as the threads spent it."""
        read, decode = (min(wall, (now - then) / self.threads) for now, then in zip(self._spent(), before, strict=True))
        for stage, share in (("read", read), ("decode", decode), ("compute", max(0.0, wall - read - decode))):
            self.seconds[stage] += share

    def _block(self, block: Window, out: list[np.ndarray]) -> np.ndarray:
        """Fill the arrays of one block, in parts where its source window does not fit the memory; gives the counts."""
        centres = self.coordinates.of(block, False) if self.methods & set(POINT_METHODS) else None
        corners = self.coordinates.of(block, True) if self.methods & set(AREA_METHODS) else None
        needed = {i: self._source_window(i, centres, corners) for i in self.used}
        if not any(needed.values()):
            return self._empty(block, out)
        if self._bytes(needed) > self.block_bytes and block.rows * block.cols > 1:
            return sum(
                self._block(part, [array[part.row - block.row :, part.col - block.col :] for array in out])
                for part in _halves(block)
            )
        return self._compute(block, out, centres, corners, needed)

    def _source_window(self, i: int, centres, corners) -> Window | None:
        """Pixels of a source that a block needs; None where it lies outside of it."""
        methods = {plane.method for plane in self.planes if plane.source == i}
        found = [
            source_window(
                method, *(corners if method in AREA_METHODS else centres), self.sources[i].shape, self.affines[i]
            )
            for method in methods
        ]
        found = [box for box in found if box[2] and box[3]]
        if not found:
            return None
        top, left = min(box[0] for box in found), min(box[1] for box in found)
        bottom, right = max(box[0] + box[2] for box in found), max(box[1] + box[3] for box in found)
        return Window(top, left, bottom - top, right - left)

    def _bytes(self, needed: dict[int, Window | None]) -> int:
        """Memory of the planes of a block and of the pixels that they are made of."""
        total = 0
        for plane in self.planes:
            window = needed[plane.source]
            if window:
                pixels = sum(self.bands[band].dtype.itemsize + 1 for band in plane.bands)
                total += window.rows * window.cols * (pixels + np.dtype(self.makers[plane.variable].dtype).itemsize + 1)
        return total

    def _empty(self, block: Window, out: list[np.ndarray]) -> np.ndarray:
        counts = np.zeros((len(out), 4), np.int64)
        counts[:, 1] = block.rows * block.cols
        for array, spec in zip(out, self.specs.values(), strict=True):
            array[: block.rows, : block.cols] = decode_number(spec["nodata"])
        return counts

    def _compute(self, block: Window, out, centres, corners, needed) -> np.ndarray:
        clear = {i: self.masks[i].read(window) for i, window in needed.items() if window}
        read = {
            band: self.bands[band].read(needed[plane.source])
            for plane in self.planes
            if needed[plane.source]
            for band in plane.bands
        }
        made, planes, origins = {}, [], []
        for plane in self.planes:
            window, maker = needed[plane.source], self.makers[plane.variable]
            key = plane.product or plane.bands
            if key not in made:
                made[key] = (
                    maker([read[band] for band in plane.bands], clear[plane.source])
                    if window
                    else np.empty((0, 0), maker.dtype)
                )
            planes.append(made[key])
            origins.append((window.row, window.col) if window else (0, 0))
        parts = [np.empty((block.rows, block.cols), array.dtype) for array in out]
        affines = [self.affines[plane.source] for plane in self.planes]
        counts = self.kernel(planes, origins, affines, centres, corners, parts)
        for array, part in zip(out, parts, strict=True):
            array[: block.rows, : block.cols] = part
        return counts


def plane_maker(inputs: Inputs, specs: dict, plane: PlaneSpec):
    """A callable ([(pixels, valid) of each band], clear) -> values after mask and radiometry, NaN where invalid."""
    bands = tuple(band_input(inputs, band) for band in plane.bands)
    if plane.product is None:
        return _BandPlane(*bands)
    return _FormulaPlane(bands, Output(plane.product, specs[plane.product]["expression"], nodata=np.nan))


class _BandPlane:
    """Value of one band."""

    def __init__(self, band):
        self.kernel = PlaneKernel(band, threads=1)
        self.dtype = np.dtype(self.kernel.dtype).name

    def __call__(self, read, clear) -> np.ndarray:
        ((pixels, valid),) = read
        return self.kernel(pixels, valid, clear)


class _FormulaPlane:
    """Value of a formula over bands of one grid."""

    dtype = "float32"

    def __init__(self, bands, product: Output):
        self.kernel = Kernel(bands, (product,), threads=1)

    def __call__(self, read, clear) -> np.ndarray:
        pixels, valid = zip(*read, strict=True)
        out = np.empty(pixels[0].shape, np.float32)
        self.kernel(pixels, valid, clear, [out])
        return out


def _halves(block: Window) -> tuple[Window, Window]:
    """A block in two, across its longer side."""
    if block.rows >= block.cols:
        first = block.rows // 2
        return (
            Window(block.row, block.col, first, block.cols),
            Window(block.row + first, block.col, block.rows - first, block.cols),
        )
    first = block.cols // 2
    return (
        Window(block.row, block.col, block.rows, first),
        Window(block.row, block.col + first, block.rows, block.cols - first),
    )


class GdalWarp:
    """Products of bands that GDAL warps onto the target grid (`warp.engine: gdal`); a context manager.

    What is resampled is the same as in `Warp`: planes after mask and radiometry, or after the formula. They are
    written to temporary files beside the products, since GDAL warps files.
    """

    def __init__(
        self,
        inputs: Inputs,
        folder: Path,
        specs: dict,
        order: str,
        threads: int,
        budget: int,
        seconds: dict,
        beat: Callable[[], None],
    ):
        # here, so that a campaign that warps by itself never loads GDAL's warper
        from cogmill.gdalwarp import WarpedPlane

        self.specs, self.seconds = specs, seconds
        planes, outputs = plan(inputs, specs, order)
        target, projection = GridSpec.from_json(inputs.grid["grid"]), inputs.grid["warp"]["projection"]
        pipeline = projection and projection["definition"]
        self.readers: list[CogReader] = []
        with contextlib.ExitStack() as stack:
            self.warped = []
            for plane in planes:
                maker = plane_maker(inputs, specs, plane)
                path = folder / f".{plane.variable}.{uuid.uuid4().hex}.tmp"
                stack.callback(path.unlink, missing_ok=True)
                self._write(path, inputs, plane, maker, threads, budget, beat)
                # one thread: GDAL's pool does not outlive the fork of the worker, and waiting for it never ends
                warped = WarpedPlane(path, target, plane.method, pipeline=pipeline)
                self.warped.append((stack.enter_context(warped), maker.dtype))
            self._stack = stack.pop_all()
        variables = [plane.variable for plane in planes]
        bands = tuple(BandInput(v, dtype) for v, (_, dtype) in zip(variables, self.warped, strict=True))
        self.kernel = Kernel(bands, tuple(outputs), threads=threads)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._stack.close()

    def _write(self, path, inputs, plane, maker, threads, budget, beat) -> None:
        from cogmill.gdalwarp import write_plane

        source = inputs.grid["sources"][plane.source]
        spec = GridSpec.from_json(source["grid"])
        with contextlib.ExitStack() as stack:
            bands = [stack.enter_context(inputs.open(band, threads)) for band in plane.bands]
            masks = stack.enter_context(Masks(inputs, source, threads))
            tile_bytes = TILE * TILE * (8 + sum(2 * (reader.dtype.itemsize + 1) for reader in bands))
            rows = max(1, budget // 2 // (tile_bytes * spec.tiles()[1]))

            def pieces():
                for window in windows(spec.shape, rows):
                    yield window, maker([reader.read(window) for reader in bands], masks.read(window))
                    beat()

            write_plane(path, spec, maker.dtype, pieces(), source["gcps"], source["rpcs"])
            self.readers += [*bands, *masks.readers]
            add_read_seconds([*bands, *masks.readers], self.seconds)

    def products(self, cut: Iterator[Window]) -> Iterator[tuple[Window, list[np.ndarray], np.ndarray]]:
        """Yield (window, arrays of the products, counts)."""

        def load(window):
            return window, [warped.read(window) for warped, _ in self.warped]

        for window, pixels in ahead(load, cut):
            out, clock = empty_outputs(self.specs, window), time.perf_counter()
            counts = self.kernel(pixels, [None] * len(pixels), None, out)
            self.seconds["compute"] += time.perf_counter() - clock
            yield window, out, counts

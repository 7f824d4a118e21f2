"""Products where bands and target share one grid: windows read ahead, computed, handed to the writers."""

import contextlib
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from cogmill.cog.reader import CogReader
from cogmill.errors import SceneError
from cogmill.grids import Window
from cogmill.indices import Expression
from cogmill.kernels.cpu import BandInput, Kernel, Output
from cogmill.ledger import decode_number
from cogmill.store import Inputs, Masks


def band_names(specs: dict) -> list[str]:
    """Bands that formulas of products name, sorted, each once."""
    return sorted({name for spec in specs.values() for name in spec["expression"].names})


def band_input(inputs: Inputs, name: str) -> BandInput:
    """How a stored band is read."""
    band = inputs.bands[name]
    radiometry = band["radiometry"]
    return BandInput(name, band["dtype"], decode_number(band["nodata"]), radiometry["scale"], radiometry["offset"])


def output(name: str, spec: dict, expression: Expression | None = None) -> Output:
    """How a product is stored; `expression` instead of its own."""
    expression = expression or spec["expression"]
    return Output(name, expression, spec["dtype"], spec["scale"], spec["offset"], decode_number(spec["nodata"]))


def empty_outputs(specs: dict, window: Window) -> list[np.ndarray]:
    """One array (rows, cols) a product, not yet filled."""
    return [np.empty((window.rows, window.cols), dtype=spec["dtype"]) for spec in specs.values()]


class SameGrid:
    """Products of bands that lie on the target grid; a context manager.

    Parameters
    ----------
    inputs : Inputs
    specs : dict
        {product: {"expression", "dtype", ...}}.
    threads : int
    seconds : dict
        "compute" grows by what kernels take.
    """

    def __init__(self, inputs: Inputs, specs: dict, threads: int, seconds: dict):
        self.specs, self.seconds = specs, seconds
        names = band_names(specs)
        outputs = tuple(output(name, spec) for name, spec in specs.items())
        self.kernel = Kernel(tuple(band_input(inputs, name) for name in names), outputs, threads=threads)
        with contextlib.ExitStack() as stack:
            self.bands = [stack.enter_context(inputs.open(name, threads)) for name in names]
            self.masks = stack.enter_context(Masks(inputs, inputs.grid["sources"][0], threads))
            self._check_shapes(names, tuple(inputs.grid["grid"]["shape"]))
            self._stack = stack.pop_all()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._stack.close()

    @property
    def readers(self) -> list[CogReader]:
        return [*self.bands, *self.masks.readers]

    def _check_shapes(self, names: list[str], shape: tuple[int, int]) -> None:
        for name, reader in zip(names, self.bands, strict=True):
            if tuple(reader.shape) != shape:
                raise SceneError(
                    f"band {name!r} has {reader.shape[0]} x {reader.shape[1]} pixels, the target grid "
                    f"{shape[0]} x {shape[1]}: products need bands of one grid (sheet column path)",
                    "grid_mismatch",
                )

    def products(self, cut: Iterator[Window]) -> Iterator[tuple[Window, list[np.ndarray], np.ndarray]]:
        """Yield (window, arrays of the products, counts); the next window is read while the caller has this one."""

        def load(window):
            pixels, valid = zip(*(reader.read(window) for reader in self.bands), strict=True)
            return window, pixels, valid, self.masks.read(window)

        for window, pixels, valid, clear in ahead(load, cut):
            out, clock = empty_outputs(self.specs, window), time.perf_counter()
            counts = self.kernel(pixels, valid, clear, out)
            self.seconds["compute"] += time.perf_counter() - clock
            yield window, out, counts
        add_read_seconds(self.readers, self.seconds)


def add_read_seconds(readers: list[CogReader], seconds: dict) -> None:
    """Add what the readers of a scene took so far."""
    for reader in readers:
        for stage in ("read", "decode"):
            seconds[stage] += reader.seconds[stage]


def ahead(load: Callable, items: Iterator) -> Iterator:
    """`load(item)` of each item, in order; the next one is made while the caller works on this one."""
    with ThreadPoolExecutor(1) as pool:
        future = None
        for item in items:
            following = pool.submit(load, item)
            if future is not None:
                yield future.result()
            future = following
        if future is not None:
            yield future.result()

"""One scene's pass from COG tiles to checked products, window by window, all its products at once."""

import contextlib
import json
import logging
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from cogmill import __version__
from cogmill.cog.reader import CogReader
from cogmill.cog.writer import CogInfo, CogWriter, Header, Layer
from cogmill.device import Device
from cogmill.errors import SceneError
from cogmill.grids import TILE, GridSpec, Window, windows
from cogmill.indices import Expression
from cogmill.kernels.cpu import BandInput, Kernel, Output, tile_stats
from cogmill.ledger import decode_number, encode_number
from cogmill.store import Inputs, MaskSampler
from cogmill.tasks import Task

log = logging.getLogger("cogmill")


AMOUNTS = ("read", "pixels_in", "written", "pixels_out")


class SceneMaker:
    """One scene's pass over its windows: all its pending products at once."""

    def __init__(self, task: Task, device: Device, inputs: Inputs, beat: Callable[[], None], attempt: dict):
        self.task, self.device, self.inputs, self.beat = task, device, inputs, beat
        self.grid = GridSpec.from_json(inputs.grid["grid"])
        self.attempt = attempt
        attempt |= {
            "seconds": dict.fromkeys(("read", "decode", "compute", "encode", "write", "check"), 0.0),
            "reader": "tiles",
            "codec": "libzstd",
            "window": [],
        }

    def make(self, specs: dict, keys: dict) -> Iterator[tuple[str, dict]]:
        """Yield (name, record entry) of each product, after its file has its final name.

        On out-of-memory the window is halved and the scene begun anew; the pixels do not depend on the window.
        """
        budget = self.task.run["window_mb"] << 20
        shape = self._window_tiles(specs, budget)
        while True:
            self.attempt["window"].append(list(shape))
            # what an earlier pass read and wrote is done again
            self.attempt |= {"bytes": dict.fromkeys(AMOUNTS, 0), "tiles": 0, "products": []}
            try:
                yield from self._pass(specs, keys, *shape)
                return
            except MemoryError:
                if shape == (1, 1):
                    raise
                log.warning("scene %r: out of memory with windows of %d x %d tiles; halved", self.task.scene, *shape)
                larger = shape
                while shape == larger:
                    budget //= 2
                    shape = self._window_tiles(specs, budget)

    def _window_tiles(self, specs: dict, budget: int) -> tuple[int, int]:
        """Height and width of a window, in tiles, so that its arrays stay within `budget` bytes."""
        tile_rows, tile_cols = self.grid.tiles()
        names = self._band_names(specs)
        # inputs twice: the next window is read while this one is computed
        per_pixel = 2 * sum(np.dtype(self.inputs.bands[n]["dtype"]).itemsize + 1 for n in names)
        per_pixel += 2 * len(self.inputs.masks) + 2 * sum(np.dtype(s["dtype"]).itemsize for s in specs.values())
        fitting = max(1, budget // (TILE * TILE * per_pixel))
        rows = max(1, min(tile_rows, fitting // tile_cols))
        if self.task.run["window"] != "auto":
            rows = max(1, min(rows, self.task.run["window"]))
        return rows, tile_cols if fitting >= tile_cols else fitting

    @staticmethod
    def _band_names(specs: dict) -> list[str]:
        return sorted({name for spec in specs.values() for name in spec["expression"].names})

    def _pass(self, specs, keys, tile_rows, tile_cols) -> Iterator[tuple[str, dict]]:
        names = self._band_names(specs)
        kernel = Kernel(
            tuple(self._band_input(name) for name in names),
            tuple(_output(name, spec) for name, spec in specs.items()),
            threads=self.device.threads,
        )
        with contextlib.ExitStack() as stack:
            readers = [stack.enter_context(self.inputs.open(name, self.device.threads)) for name in names]
            masks = [
                stack.enter_context(MaskSampler(self.inputs, role, rule, self.device.threads))
                for role, rule in self.inputs.masks.items()
            ]
            self._check_grids(names, readers)
            writers = {name: stack.enter_context(self._writer(name, spec, keys[name])) for name, spec in specs.items()}
            pool = stack.enter_context(ThreadPoolExecutor(self.device.threads))
            tallies = {name: Tally(decode_number(spec["nodata"])) for name, spec in specs.items()}
            wide = tile_cols if tile_cols < self.grid.tiles()[1] else None
            for window, pixels, valid, mask in self._read(windows(self.grid.shape, tile_rows, wide), readers, masks):
                out = [np.empty((window.rows, window.cols), dtype=spec["dtype"]) for spec in specs.values()]
                with self._timed("compute"):
                    counts = kernel(pixels, valid, mask, out)
                    for tally, array, row in zip(tallies.values(), out, counts, strict=True):
                        tally.add(array, row, pool)
                with self._timed("encode"):
                    for writer, array in zip(writers.values(), out, strict=True):
                        writer.write(window, array)
                self.beat()
            for reader in [*readers, *(mask.reader for mask in masks)]:
                self._account(reader)
            for name, writer in writers.items():
                self.beat()
                yield name, self._entry(name, writer.finish(), keys[name], tallies[name])

    def _band_input(self, name: str) -> BandInput:
        band = self.inputs.bands[name]
        return BandInput(
            name,
            band["dtype"],
            decode_number(band["nodata"]),
            band["radiometry"]["scale"],
            band["radiometry"]["offset"],
        )

    def _check_grids(self, names, readers) -> None:
        for name, reader in zip(names, readers, strict=True):
            if tuple(reader.shape) != self.grid.shape:
                raise SceneError(
                    f"band {name!r} has {reader.shape[0]} x {reader.shape[1]} pixels, the target grid "
                    f"{self.grid.shape[0]} x {self.grid.shape[1]}: products need bands of one grid (sheet column path)",
                    "grid_mismatch",
                )

    def _read(self, cut: Iterator[Window], readers, masks) -> Iterator[tuple]:
        """Windows with their pixels; the next one is read while the caller works on this one."""

        def load(window):
            pixels, valid = zip(*(reader.read(window) for reader in readers), strict=True) if readers else ((), ())
            mask = None
            for sampler in masks:
                part = sampler.read(window)
                mask = part if mask is None else np.minimum(mask, part)
            return window, pixels, valid, mask

        with ThreadPoolExecutor(1) as ahead:
            future = None
            for window in cut:
                following = ahead.submit(load, window)
                if future is not None:
                    yield future.result()
                future = following
            if future is not None:
                yield future.result()

    def _writer(self, name: str, spec: dict, key: str) -> CogWriter:
        run = self.task.run
        layer = Layer(
            shape=self.grid.shape,
            dtype=spec["dtype"],
            nodata=decode_number(spec["nodata"]),
            kind=spec["kind"],
            level=run["zstd_level"],
        )
        gcps = self.inputs.grid["gcps"]
        header = Header(
            crs=self.grid.crs,
            transform=self.grid.transform,
            gcps=tuple(tuple(point) for point in gcps) if gcps else None,
            rpcs=self.inputs.grid["rpcs"],
            scale=spec["scale"],
            offset=spec["offset"],
            unit=spec["unit"] or "",
            description=spec["description"] or name,
            tags=self._tags(name, spec, key),
        )
        spool = (run["spool_mb"] << 20) // max(1, len(self.task.products))
        threads, path = self.device.threads, self.task.product(name)
        return CogWriter(path, layer, header, spool_bytes=spool, threads=threads, beat=self.beat)

    def _tags(self, name: str, spec: dict, key: str) -> dict:
        """What made the pixels; nothing of when, where or how fast, so that equal pixels give equal files."""
        bands = {role: self.inputs.bands[role] for role in spec["expression"].names}
        inputs = {
            role: {
                "file": Path(band["source"]["path"]).name,
                "band": band["source"]["band"],
                "pixels": band["pixel_digest"],
                "scale": band["radiometry"]["scale"],
                "offset": band["radiometry"]["offset"],
                "decided_by": band["radiometry"]["decided_by"],
            }
            for role, band in bands.items()
        }
        return {
            "TIFFTAG_SOFTWARE": f"cogmill {__version__}",
            "COGMILL_SCENE": self.task.scene,
            "COGMILL_PRODUCT": name,
            "COGMILL_FORMULA": spec["expression"].text,
            "COGMILL_INPUTS": json.dumps(inputs, ensure_ascii=False),
            "COGMILL_MASKS": json.dumps(self.inputs.masks),
            "COGMILL_KEY": key,
        }

    def _entry(self, name: str, info: CogInfo, key: str, tally: "Tally") -> dict:
        seconds, amounts = self.attempt["seconds"], self.attempt["bytes"]
        for stage in ("write", "check"):
            seconds[stage] += info.seconds.get(stage, 0.0)
        amounts["written"] += info.size
        spec = self.task.products[name]
        amounts["pixels_out"] += self.grid.shape[0] * self.grid.shape[1] * np.dtype(spec["dtype"]).itemsize
        self.attempt["tiles"] += info.tiles
        self.attempt["products"].append(name)
        return {
            "file": self.task.product(name).name,
            "size": info.size,
            "mtime_ns": info.mtime_ns,
            "checksum": info.checksum,
            "pixel_digest": list(info.pixel_digest),
            "key": key,
            "stats": tally.stats(spec["scale"], spec["offset"]),
            "tiles": info.tiles,
        }

    def _account(self, reader: CogReader) -> None:
        for stage in ("read", "decode"):
            self.attempt["seconds"][stage] += reader.seconds[stage]
        self.attempt["bytes"]["read"] += reader.bytes_read
        rows, cols = reader.shape
        self.attempt["bytes"]["pixels_in"] += rows * cols * reader.dtype.itemsize

    @contextlib.contextmanager
    def _timed(self, stage: str):
        clock = time.perf_counter()
        yield
        self.attempt["seconds"][stage] += time.perf_counter() - clock


def _output(name: str, spec: dict) -> Output:
    expression: Expression = spec["expression"]
    return Output(name, expression, spec["dtype"], spec["scale"], spec["offset"], decode_number(spec["nodata"]))


class Tally:
    """Counts and statistics of a product, the same for any window and any number of threads.

    The sums are float64 sums a tile, added in tile order.
    """

    def __init__(self, nodata):
        self.nodata = nodata
        self.counts = np.zeros(4, dtype=np.int64)
        self.number, self.low, self.high, self.total = 0, np.inf, -np.inf, 0.0

    def add(self, pixels: np.ndarray, counts: np.ndarray, pool: ThreadPoolExecutor) -> None:
        """Take in a window of whole tiles, `pixels` (rows, cols)."""
        self.counts += counts
        tiles = [
            pixels[row : row + TILE, col : col + TILE]
            for row in range(0, pixels.shape[0], TILE)
            for col in range(0, pixels.shape[1], TILE)
        ]
        for number, low, high, total in pool.map(lambda tile: tile_stats(tile, self.nodata), tiles):
            if number:
                self.number += int(number)
                self.low, self.high = min(self.low, low), max(self.high, high)
                self.total += total

    def stats(self, scale: float, offset: float) -> dict:
        """Statistics in the product's unit (packed numbers times scale plus offset)."""
        valid, invalid, clamped, infinite = (int(count) for count in self.counts)
        stats = {"valid": valid, "invalid": invalid, "clamped": clamped, "infinite": infinite}
        # with a negative scale the least stored number is the greatest value
        low, high = (self.high, self.low) if scale < 0 else (self.low, self.high)
        values = (low, high, self.total / self.number) if self.number else (None, None, None)
        for name, value in zip(("min", "max", "mean"), values, strict=True):
            stats[name] = None if value is None else encode_number(float(value) * scale + offset)
        return stats

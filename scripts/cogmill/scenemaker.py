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
from cogmill.grids import TILE, GridSpec, windows
from cogmill.kernels.cpu import tile_stats
from cogmill.ledger import decode_number, encode_number
from cogmill.pixels import SameGrid, band_names
from cogmill.store import Inputs
from cogmill.tasks import Task
from cogmill.warp import GdalWarp, Warp, warp_of

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
        self._budget = self.task.run["window_mb"] << 20
        shape = self._window_tiles(specs, self._budget)
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
                    self._budget //= 2
                    shape = self._window_tiles(specs, self._budget)

    def _window_tiles(self, specs: dict, budget: int) -> tuple[int, int]:
        """Height and width of a window, in tiles, so that its arrays stay within `budget` bytes."""
        tile_rows, tile_cols = self.grid.tiles()
        # twice: the next window is computed, or its inputs read, while this one is encoded
        per_pixel = 2 * sum(np.dtype(s["dtype"]).itemsize for s in specs.values())
        if self.inputs.grid["operation"] == "identity":
            # inputs twice: the next window is read while this one is computed
            per_pixel += 2 * sum(np.dtype(self.inputs.bands[n]["dtype"]).itemsize + 1 for n in band_names(specs))
            per_pixel += 2 * len(self.inputs.masks)
        else:
            budget //= 4  # the rest is for source pixels
        fitting = max(1, budget // (TILE * TILE * per_pixel))
        rows = max(1, min(tile_rows, fitting // tile_cols))
        if self.task.run["window"] != "auto":
            rows = max(1, min(rows, self.task.run["window"]))
        return rows, tile_cols if fitting >= tile_cols else fitting

    def _pixels(self, specs: dict):
        """What gives the products' pixels, window by window, for the operation of the scene's grid record."""
        threads, seconds = self.device.threads, self.attempt["seconds"]
        operation = self.inputs.grid["operation"]
        if operation == "identity":
            return SameGrid(self.inputs, specs, threads, seconds)
        order = self.task.warp["order"]
        if operation == "gdal":
            return GdalWarp(self.inputs, self.task.folder, specs, order, threads, self._budget, seconds, self.beat)
        return Warp(self.inputs, Path(self.task.grid).parent, specs, order, threads, self._budget, seconds)

    def _pass(self, specs, keys, tile_rows, tile_cols) -> Iterator[tuple[str, dict]]:
        with contextlib.ExitStack() as stack:
            pixels = stack.enter_context(self._pixels(specs))
            writers = {name: stack.enter_context(self._writer(name, spec, keys[name])) for name, spec in specs.items()}
            pool = stack.enter_context(ThreadPoolExecutor(self.device.threads))
            tallies = {name: Tally(decode_number(spec["nodata"])) for name, spec in specs.items()}
            wide = tile_cols if tile_cols < self.grid.tiles()[1] else None
            for window, out, counts in pixels.products(windows(self.grid.shape, tile_rows, wide)):
                with self._timed("compute"):
                    for tally, array, row in zip(tallies.values(), out, counts, strict=True):
                        tally.add(array, row, pool)
                with self._timed("encode"):
                    for writer, array in zip(writers.values(), out, strict=True):
                        writer.write(window, array)
                self.beat()
            for reader in pixels.readers:
                self._account(reader)
            for name, writer in writers.items():
                self.beat()
                yield name, self._entry(name, writer.finish(), keys[name], tallies[name])

    def _writer(self, name: str, spec: dict, key: str) -> CogWriter:
        run = self.task.run
        layer = Layer(
            shape=self.grid.shape,
            dtype=spec["dtype"],
            nodata=decode_number(spec["nodata"]),
            kind=spec["kind"],
            level=run["zstd_level"],
        )
        same = self.inputs.grid["sources"][0] if self.inputs.grid["operation"] == "identity" else None
        gcps, rpcs = (same["gcps"], same["rpcs"]) if same else (None, None)
        header = Header(
            crs=self.grid.crs,
            transform=self.grid.transform,
            gcps=tuple(tuple(point) for point in gcps) if gcps else None,
            rpcs=rpcs,
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
        } | self._warp_tags(spec)

    def _warp_tags(self, spec: dict) -> dict:
        """How the bands came onto the target grid; nothing where they lie on it."""
        grid = self.inputs.grid
        if grid["operation"] == "identity":
            return {}
        names = ("engine", "max_error_px", "error_px", "projection")
        warp = {name: grid["warp"][name] for name in names}
        warp |= warp_of(spec, self.inputs.bands, self.task.warp["order"])
        return {"COGMILL_WARP": json.dumps(warp, ensure_ascii=False)}

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
        self.attempt["bytes"]["read"] += reader.bytes_read
        rows, cols = reader.shape
        self.attempt["bytes"]["pixels_in"] += rows * cols * reader.dtype.itemsize

    @contextlib.contextmanager
    def _timed(self, stage: str):
        clock = time.perf_counter()
        yield
        self.attempt["seconds"][stage] += time.perf_counter() - clock


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

"""Reading ZSTD tiles of a COG: read, verify, decode, all on the CPU.

A tile whose checksum is known is verified before it is decoded; the readers on the GPU do the same, for the
same reason: a decoder that is fed wrong bytes may say nothing.
"""

import contextlib
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from cogmill.codecs import cpu
from cogmill.cog.files import pread, reading
from cogmill.cog.index import ImageIndex, read_index, why_not_conforming, why_not_readable
from cogmill.errors import DamagedTileError, SceneError
from cogmill.grids import Window

# Neighbours in the file are read together: in one request up to this size, across gaps up to that one (a mask's
# tiles lie between those of its image).
REQUEST_BYTES = 8 << 20
GAP_BYTES = 64 << 10


@dataclass(frozen=True)
class _Tile:
    image: ImageIndex
    row: int
    col: int
    offset: int
    size: int


def decode(image: ImageIndex, data) -> np.ndarray:
    """Pixels of one compressed tile of `image`; of a mask uint8, 255 valid and 0 invalid.

    Raises
    ------
    DamagedTileError
        Without saying which tile.
    """
    if image.kind == "mask":
        return cpu.decode_mask(data, image.tile)
    return cpu.decode_tile(data, image.dtype, image.tile, image.predictor, image.byteorder)


def _checksum_grid(given, image: ImageIndex, path) -> np.ndarray | None:
    """Checksums as (tile rows, tile cols): those given, else those of the file."""
    if given is None:
        return image.checksums
    given = np.asarray(given, dtype=np.uint64)
    if given.size != image.counts.size:
        raise SceneError(
            f"{path} has {image.counts.size} tiles where its record has checksums of {given.size}: "
            "the file was changed after it was recorded",
            "changed",
        )
    return given.reshape(image.counts.shape)


class _TileCache:
    """The tiles decoded last, up to `limit` bytes; a tile that several threads want at once is decoded by one."""

    def __init__(self, limit: int):
        self.limit = limit
        self._size = 0
        self._lock = threading.Lock()
        self._tiles: OrderedDict = OrderedDict()

    def claim(self, tiles: list[_Tile]) -> tuple[dict, list[_Tile]]:
        """Futures of all tiles by place, and the tiles that the caller must decode and `keep`."""
        wanted, own = {}, []
        with self._lock:
            for tile in tiles:
                key = _place_of(tile)
                if key in self._tiles:
                    self._tiles.move_to_end(key)
                else:
                    self._tiles[key] = Future()
                    own.append(tile)
                wanted[key] = self._tiles[key]
        return wanted, own

    def keep(self, tile: _Tile, pixels: np.ndarray) -> None:
        with self._lock:
            future = self._tiles[_place_of(tile)]
            self._size += pixels.nbytes
            future.set_result(pixels)
            for key, old in list(self._tiles.items()):
                if self._size <= self.limit:
                    break
                if old.done() and old is not future:
                    self._size -= self._tiles.pop(key).result().nbytes

    def fail(self, tiles: list[_Tile], error: BaseException) -> None:
        """Give up the tiles that are not decoded yet: who waits for them gets the error, who comes later tries anew."""
        with self._lock:
            for tile in tiles:
                if not self._tiles[_place_of(tile)].done():
                    self._tiles.pop(_place_of(tile)).set_exception(error)


def _place_of(tile: _Tile) -> tuple:
    return id(tile.image), tile.row, tile.col


def _whole(tile: _Tile, pixels: np.ndarray | None) -> np.ndarray:
    """Pixels of a tile; of an absent one a single value, repeated without memory."""
    return np.broadcast_to(np.array(tile.image.fill, tile.image.dtype), tile.image.tile) if pixels is None else pixels


class CogReader:
    """Pixels of one band of a tiled ZSTD TIFF, any window of any level; a context manager.

    Parameters
    ----------
    path : path-like
    band : int
        1-based; for files with several bands, which must then be band by band (PlanarConfiguration 2).
    checksums, mask_checksums : ndarray of uint64, (tile rows, tile cols) or flat, optional
        xxh3-64 of the compressed tiles of the full resolution. The file's own are taken where none are given.
    threads : int
        Read and decode so many pieces at a time.
    cache_bytes : int
        Decoded tiles kept for later windows; 0 keeps none. Windows that overlap, as those of a warp do, then cost
        one decoding. `read` may be called from several threads.

    Attributes
    ----------
    shape, grid_shape : (rows, cols), (tile rows, tile cols) of the full resolution
    dtype : numpy.dtype
    index : CogIndex
    bytes_read : int
    seconds : dict
        read, decode: wall time so far.

    Raises
    ------
    SceneError
        As `read_index`; `changed` when the checksums are of another number of tiles; `not_conforming` for files
        that are not in ZSTD tiles of one band each.
    RetryableError
        `io_error`, from `read` too.
    """

    def __init__(
        self, path, band: int = 1, checksums=None, mask_checksums=None, threads: int = 1, cache_bytes: int = 0
    ):
        self.path = Path(path)
        self.index = read_index(path, band)
        self._require_readable(0)
        image, mask = self.index.images[0], self.index.masks[0]
        self.shape, self.grid_shape = image.shape, image.counts.shape
        self.dtype = np.dtype(image.dtype)
        self._checksums = {id(part): part.checksums for part in (*self.index.images, *self.index.masks) if part}
        self._checksums[id(image)] = _checksum_grid(checksums, image, path)
        if mask is not None:
            self._checksums[id(mask)] = _checksum_grid(mask_checksums, mask, path)
        elif mask_checksums is not None:
            raise SceneError(f"{path} lost its mask: the file was changed after it was recorded", "changed")
        self.bytes_read = 0
        self.seconds = {"read": 0.0, "decode": 0.0}
        self._lock = threading.Lock()
        self._cache = _TileCache(cache_bytes) if cache_bytes else None
        self._pool = ThreadPoolExecutor(threads) if threads > 1 else None
        with reading(path):
            self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def _require_readable(self, level: int) -> None:
        # level by level: overviews that others made may be of any kind, and are seldom wanted
        for image in (self.index.images[level], self.index.masks[level]):
            reason = image and why_not_readable(image)
            if reason:
                raise SceneError(f"{self.path}: {reason}; cogmill's tile reader cannot read it", "not_conforming")

    def __enter__(self) -> "CogReader":
        return self

    def __exit__(self, *_) -> None:
        self.close()

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        if self._fd is not None:
            if self._pool is not None:
                self._pool.shutdown(cancel_futures=True)
            os.close(self._fd)
            self._fd = None

    def read(self, window: Window, level: int = 0) -> tuple[np.ndarray, np.ndarray | None]:
        """Pixels of a window.

        Parameters
        ----------
        window : Window
            In pixels of the level; inside of it.
        level : int
            0 full resolution, then the overviews.

        Returns
        -------
        pixels : ndarray (rows, cols) of the file's type
        valid : ndarray of uint8 (rows, cols), 255 valid and 0 invalid, or None
            The file's mask.

        Raises
        ------
        DamagedTileError
            A tile differs from its checksum, twice, or cannot be decoded.
        """
        if level:
            self._require_readable(level)
        image, mask = self.index.images[level], self.index.masks[level]
        rows, cols = image.shape
        if window.row + window.rows > rows or window.col + window.cols > cols:
            raise ValueError(f"{window} lies outside of the {rows} x {cols} pixels of level {level} of {self.path}")
        pixels = np.empty((window.rows, window.cols), dtype=image.dtype)
        arrays = {id(image): pixels}
        valid = None
        if mask is not None:
            arrays[id(mask)] = valid = np.empty(pixels.shape, dtype=np.uint8)
        tiles = [tile for part in (image, mask) if part is not None for tile in self._tiles(part, window)]
        self._require_recorded([tile for tile in tiles if not tile.size])
        if self._cache is None:
            with self._decoded(tiles) as decoded:
                self._each(lambda tile: self._place(tile, decoded(tile), window, arrays[id(tile.image)]), tiles)
        else:
            futures = self._cached(tiles)
            for tile in tiles:
                self._place(tile, futures[_place_of(tile)].result(), window, arrays[id(tile.image)])
        return pixels, valid

    @contextlib.contextmanager
    def _decoded(self, tiles: list[_Tile]):
        """Read the bytes of tiles; gives a function that decodes one, None where the tile is absent."""
        clock = time.perf_counter()
        data = self._read_tiles([tile for tile in tiles if tile.size])
        middle = time.perf_counter()
        yield lambda tile: self._decode(tile, data[_place_of(tile)]) if tile.size else None
        with self._lock:
            self.seconds["read"] += middle - clock
            self.seconds["decode"] += time.perf_counter() - middle

    def _cached(self, tiles: list[_Tile]) -> dict[tuple, Future]:
        """Futures of decoded tiles by place; what another thread decodes just now comes when it is ready."""
        wanted, own = self._cache.claim(tiles)
        try:
            with self._decoded(own) as decoded:
                self._each(lambda tile: self._cache.keep(tile, _whole(tile, decoded(tile))), own)
        except BaseException as error:
            self._cache.fail(own, error)
            raise
        return wanted

    def _require_recorded(self, absent: list[_Tile]) -> None:
        """Absent tiles have no bytes to verify; one that was recorded with bytes has lost them."""
        for tile in absent:
            known = self._checksums[id(tile.image)]
            if known is not None and known[tile.row, tile.col]:
                raise DamagedTileError(
                    f"{self.path}: tile row {tile.row}, column {tile.col} of its {tile.image.kind} is absent, but a "
                    "checksum of it is recorded: the file was changed or damaged"
                )

    def _each(self, work: Callable, items: Iterable) -> list:
        return list((self._pool.map if self._pool else map)(work, items))

    @staticmethod
    def _tiles(image: ImageIndex, window: Window) -> list[_Tile]:
        height, width = image.tile
        return [
            _Tile(image, row, col, int(image.offsets[row, col]), int(image.counts[row, col]))
            for row in range(window.row // height, -(-(window.row + window.rows) // height))
            for col in range(window.col // width, -(-(window.col + window.cols) // width))
        ]

    def _read_tiles(self, tiles: list[_Tile]) -> dict:
        """Compressed bytes by (image, row, col), neighbours read together."""
        requests: list[list[_Tile]] = []
        for tile in sorted(tiles, key=lambda tile: tile.offset):
            if requests:
                first, before = requests[-1][0], requests[-1][-1]
                gap = tile.offset - (before.offset + before.size)
                if 0 <= gap <= GAP_BYTES and tile.offset + tile.size - first.offset <= REQUEST_BYTES:
                    requests[-1].append(tile)
                    continue
            requests.append([tile])

        def fetch(request: list[_Tile]) -> list:
            start = request[0].offset
            block = memoryview(self._pread(request[-1].offset + request[-1].size - start, start))
            return [block[tile.offset - start : tile.offset - start + tile.size] for tile in request]

        blocks = self._each(fetch, requests)
        return {
            _place_of(tile): part
            for request, parts in zip(requests, blocks, strict=True)
            for tile, part in zip(request, parts, strict=True)
        }

    def _pread(self, size: int, offset: int) -> bytes:
        with reading(self.path):
            data = pread(self._fd, size, offset)
        with self._lock:
            self.bytes_read += len(data)
        return data

    @staticmethod
    def _place(tile: _Tile, pixels, window: Window, out: np.ndarray) -> None:
        image = tile.image
        top, left = tile.row * image.tile[0], tile.col * image.tile[1]
        r0, c0 = max(top, window.row), max(left, window.col)
        r1 = min(top + image.tile[0], window.row + window.rows)
        c1 = min(left + image.tile[1], window.col + window.cols)
        target = out[r0 - window.row : r1 - window.row, c0 - window.col : c1 - window.col]
        target[...] = image.fill if pixels is None else pixels[r0 - top : r1 - top, c0 - left : c1 - left]

    def _decode(self, tile: _Tile, data) -> np.ndarray:
        try:
            return self._verified(tile, data)
        except DamagedTileError:
            # a page of a network file system can come wrong once; what is wrong twice is wrong on disk
            data = self._pread(tile.size, tile.offset)
        try:
            return self._verified(tile, data)
        except DamagedTileError as error:
            what = "mask tile" if tile.image.kind == "mask" else "tile"
            raise DamagedTileError(
                f"{self.path}: {what} (row {tile.row}, column {tile.col}) of {tile.size} bytes at byte "
                f"{tile.offset} is damaged: {error}"
            ) from error

    def _verified(self, tile: _Tile, data) -> np.ndarray:
        if len(data) != tile.size:
            raise DamagedTileError(f"the file ends after {len(data)} of them")
        checksums = self._checksums[id(tile.image)]
        if checksums is not None:
            found, wanted = cpu.tile_checksum(data), int(checksums[tile.row, tile.col])
            if found != wanted:
                raise DamagedTileError(
                    f"its checksum is {found:016x}, recorded was {wanted:016x} (if another program changed the file on "
                    "purpose, copy it with gdal_translate)"
                )
        return decode(tile.image, data)

    def digest_tiles(self) -> tuple[np.ndarray, np.ndarray]:
        """Decode every tile of the full resolution once.

        Returns
        -------
        checksums, digests : ndarray of uint64 (tile rows, tile cols)
            `codecs.cpu.tile_checksum` (0 of absent tiles) and `codecs.cpu.pixel_digest_tile`.
        """
        image = self.index.images[0]
        checksums, digests = (np.zeros(self.grid_shape, dtype=np.uint64) for _ in range(2))
        absent = np.full(image.tile, image.fill, dtype=image.dtype)

        def digest(work) -> None:
            tile, data = work
            decoded = absent if data is None else self._decode(tile, data)
            checksums[tile.row, tile.col] = 0 if data is None else cpu.tile_checksum(data)
            digests[tile.row, tile.col] = cpu.pixel_digest_tile(decoded)

        for row in range(self.grid_shape[0]):
            top = row * image.tile[0]
            tiles = self._tiles(image, Window(top, 0, min(image.tile[0], self.shape[0] - top), self.shape[1]))
            data = self._read_tiles([tile for tile in tiles if tile.size])
            self._each(digest, [(tile, data.get(_place_of(tile))) for tile in tiles])
        return checksums, digests


def index_tiles(path, band: int = 1, threads: int = 1) -> tuple[np.ndarray, str]:
    """Checksums of a conforming file that somebody else wrote: every tile is decoded once by libzstd.

    Returns
    -------
    checksums : ndarray of uint64 (tile rows, tile cols)
        xxh3-64 of the compressed tiles; 0 of absent tiles.
    pixel_digest : str
        Of the decoded tiles, see `codecs.cpu.pixel_digest`.

    Raises
    ------
    SceneError
        `not_conforming`, and as `CogReader`.
    DamagedTileError
        A tile cannot be decoded.
    """
    reason = why_not_conforming(read_index(path, band))
    if reason:
        raise SceneError(f"{path} cannot be used in place: {reason}", "not_conforming")
    with CogReader(path, band, threads=threads) as reader:
        checksums, digests = reader.digest_tiles()
    return checksums, cpu.pixel_digest(digests)

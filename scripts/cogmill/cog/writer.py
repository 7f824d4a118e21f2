"""Writing COGs: tiles come in, overviews are made on the way, the file is checked before it gets its name.

GDAL makes the header (see header.py), layout.py places it; the tiles are compressed here or come compressed
from elsewhere (`put_tile`). Equal pixels and equal headers give equal bytes, whatever the windows and threads.
"""

import contextlib
import math
import os
import tempfile
import threading
import time
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import xxhash

from cogmill.codecs import cpu
from cogmill.cog import header as headers
from cogmill.cog import layout as layouts
from cogmill.cog.files import writing
from cogmill.cog.header import Header
from cogmill.cog.index import DTYPES, GDAL_NODATA
from cogmill.cog.layout import FRAME, MASK, REDUCED, Image
from cogmill.cog.validate import check_tile_rows, compare_index
from cogmill.errors import RetryableError, SceneError
from cogmill.folders import idle
from cogmill.grids import TILE, Window
from cogmill.kernels.overviews import KINDS, reduce2
from cogmill.masks import nodata_in

DIGEST_TAG = "COGMILL_PIXEL_DIGEST"
HALF = TILE // 2
# tags of the full resolution that overviews repeat, as GDAL has it
INHERITED = {headers.COLORMAP, GDAL_NODATA}
COPY_BYTES = 1 << 22
SYNC_BYTES = 1 << 28


@dataclass(frozen=True)
class Layer:
    """Pixels of a single-band file.

    Parameters
    ----------
    shape : (rows, cols)
    dtype : str
        uint8 to uint64, int8 to int64, float32 or float64.
    nodata : number or None
    kind : {"continuous", "classes", "bits"}
        How overviews are made, see kernels/overviews.py.
    mask : bool
        Whether the file has an internal mask; `CogWriter.write` then needs `valid`.
    overviews : bool
        Halve until both sides fit one tile.
    level : int
        ZSTD level.
    """

    shape: tuple[int, int]
    dtype: str
    nodata: int | float | None = None
    kind: str = "continuous"
    mask: bool = False
    overviews: bool = True
    level: int = 9

    def __post_init__(self):
        if self.dtype not in DTYPES.values():
            raise ValueError(f"no COG of type {self.dtype!r}: it must be one of {', '.join(sorted(DTYPES.values()))}")
        if self.kind not in KINDS:
            raise ValueError(f"layer kind {self.kind!r} is none of {', '.join(KINDS)}")
        if len(self.shape) != 2 or min(self.shape) < 1 or max(self.shape) >= 1 << 31:
            raise ValueError(f"a layer cannot have the shape {self.shape}")
        if self.nodata is not None and nodata_in(self.nodata, self.dtype) is None:
            raise SceneError(f"{self.dtype} cannot hold the nodata value {self.nodata}", "nodata")

    @property
    def fill(self) -> np.generic:
        """Value of absent tiles and of the padding: nodata, else 0."""
        if self.nodata is None:
            return np.dtype(self.dtype).type(0)
        return np.dtype(self.dtype).type(int(self.nodata) if np.dtype(self.dtype).kind != "f" else self.nodata)

    @property
    def nodata_text(self) -> str:
        """As GDAL writes it."""
        if np.dtype(self.dtype).kind != "f":
            return str(int(self.nodata))
        return "nan" if math.isnan(self.nodata) else f"{float(self.nodata):.17g}"

    def shapes(self) -> list[tuple[int, int]]:
        """Shape of the full resolution and of each overview."""
        shapes = [tuple(self.shape)]
        while self.overviews and max(shapes[-1]) > TILE:
            shapes.append((-(-shapes[-1][0] // 2), -(-shapes[-1][1] // 2)))
        return shapes


@dataclass(frozen=True)
class CogInfo:
    """What was written.

    Parameters
    ----------
    path : Path
    size, mtime_ns : int
    checksum : str
        xxh3-128 of the file's bytes, hex.
    pixel_digest : list of str
        Per level, see `codecs.cpu.pixel_digest`.
    tiles : int
        Tiles with data, of all levels and masks.
    checksums, mask_checksums : ndarray of uint64 (tile rows, tile cols); the second None without mask
        xxh3-64 of the compressed tiles of the full resolution.
    seconds : dict
        encode, write, check.
    """

    path: Path
    size: int
    mtime_ns: int
    checksum: str
    pixel_digest: list[str]
    tiles: int
    checksums: np.ndarray = field(repr=False)
    mask_checksums: np.ndarray | None = field(repr=False)
    seconds: dict


class _Spool:
    """Compressed tiles until their places are known: in memory, beyond `limit` bytes in an unlinked file."""

    def __init__(self, limit: int, folder: Path):
        self.limit, self.folder = limit, folder
        self.size = 0
        self._memory: dict[int, bytes] = {}
        self._file = None
        self._flushed = False

    def append(self, data: bytes) -> int:
        position = self.size
        if self._file is None and self.size + len(data) > self.limit:
            self._file = tempfile.TemporaryFile(dir=self.folder, buffering=COPY_BYTES)  # noqa: SIM115  lives on
            for piece in self._memory.values():
                self._file.write(piece)
            self._memory.clear()
        if self._file is None:
            self._memory[position] = data
        else:
            self._file.write(data)
            self._flushed = False
        self.size += len(data)
        return position

    def read(self, position: int, size: int) -> bytes:
        if self._file is None:
            return self._memory[position]
        if not self._flushed:
            self._file.flush()
            self._flushed = True
        data = os.pread(self._file.fileno(), size, position)
        if len(data) != size:
            raise OSError(f"the spool file in {self.folder} gave {len(data)} of {size} bytes")
        return data

    def close(self) -> None:
        self._memory.clear()
        if self._file is not None:
            # a buffer that cannot be flushed (disk full) must not hide the error that brought us here
            with contextlib.suppress(OSError):
                self._file.close()


class _Plane:
    """Tiles of one image or mask: where they are spooled, their sizes, checksums and pixel digests."""

    def __init__(self, grid: tuple[int, int]):
        self.positions = np.zeros(grid, dtype=np.int64)
        self.sizes = np.zeros(grid, dtype=np.uint32)
        self.checksums = np.zeros(grid, dtype=np.uint64)
        self.digests = np.zeros(grid, dtype=np.uint64)
        self.there = np.zeros(grid, dtype=bool)


class _Level:
    """One resolution. `row` and `row_valid` hold the tile row of an overview that is being filled."""

    def __init__(self, shape: tuple[int, int], mask: bool):
        self.shape = shape
        self.grid = -(-shape[0] // TILE), -(-shape[1] // TILE)
        self.planes = [_Plane(self.grid)] + ([_Plane(self.grid)] if mask else [])
        self.row: np.ndarray | None = None
        self.row_valid: np.ndarray | None = None

    def row_height(self, tile_row: int) -> int:
        return min(TILE, self.shape[0] - tile_row * TILE)


class CogWriter:
    """Write one single-band COG; a context manager that leaves nothing behind unless `finish` has succeeded.

    Parameters
    ----------
    path : path-like
        Final name; its folder is made when it is not there.
    layer : Layer
    header : Header
    spool_bytes : int
        Compressed tiles kept in memory; beyond that they go to an unlinked temporary file.
    spool_dir : path-like, optional
        Folder of that file; the target's by default.
    threads : int
        Compress so many tiles at a time.
    beat : callable
        Called now and then while `finish` works, so that a watcher sees it alive.

    Raises
    ------
    SceneError
        `header` when GeoTIFF cannot hold the metadata.
    RetryableError
        `io_error`, from all methods: disk full and other faults of the system.
    """

    def __init__(
        self,
        path,
        layer: Layer,
        header: Header,
        *,
        spool_bytes: int = 256 << 20,
        spool_dir=None,
        threads: int = 1,
        beat: Callable[[], None] = idle,
    ):
        self.path, self.layer, self.header = Path(path), layer, header
        self.seconds = {"encode": 0.0, "write": 0.0, "check": 0.0}
        self._beat = beat
        # a header that cannot be written is said before hours of work, not after
        headers.template_tags(header, layer.dtype, {}, str(self.path))
        with writing(self.path):
            self.path.parent.mkdir(parents=True, exist_ok=True)
        self._predictor = cpu.predictor_for(layer.dtype)
        self._fill = layer.fill
        self._levels = [_Level(shape, layer.mask) for shape in layer.shapes()]
        self._fill_digests = [cpu.pixel_digest_tile(np.full((TILE, TILE), self._fill))]
        self._fill_digests.append(cpu.pixel_digest_tile(np.zeros((TILE, TILE // 8), dtype=np.uint8)))
        self._spool = _Spool(spool_bytes, Path(spool_dir) if spool_dir else self.path.parent)
        self._lock = threading.Lock()
        self._pool = ThreadPoolExecutor(threads) if threads > 1 else None
        self._next = (0, 0)  # row and column of the pixel where the next window must begin
        self._closed = False

    def __enter__(self) -> "CogWriter":
        return self

    def __exit__(self, *_) -> None:
        self.abort()

    def abort(self) -> None:
        """Let go of everything; without effect after `finish`."""
        if not self._closed:
            self._closed = True
            self._spool.close()
            if self._pool is not None:
                self._pool.shutdown(cancel_futures=True)

    def write(self, window: Window, pixels: np.ndarray, valid: np.ndarray | None = None) -> None:
        """Add a window of whole tiles; windows come in row-major order.

        Parameters
        ----------
        window : Window
            Whole tiles (fewer pixels only at the right and lower edge); one tile row high unless as wide as the
            raster.
        pixels : ndarray (rows, cols) of the layer's type
        valid : ndarray of uint8 (rows, cols)
            0 invalid; for layers with a mask only.
        """
        self._check_window(window, pixels, valid)
        clock = time.perf_counter()
        for top in range(0, window.rows, TILE):
            part = slice(top, top + TILE)
            self._take(
                0,
                (window.row + top) // TILE,
                window.col // TILE,
                pixels[part],
                None if valid is None else valid[part],
            )
        self.seconds["encode"] += time.perf_counter() - clock

    def _check_window(self, window: Window, pixels, valid) -> None:
        rows, cols = self.layer.shape
        right, low = window.col + window.cols, window.row + window.rows
        if self._closed:
            raise ValueError(f"{self.path} is closed")
        if (window.row, window.col) != self._next:
            raise ValueError(f"the next window of {self.path} begins at {self._next}, not at {window}")
        if right > cols or low > rows or (right % TILE and right != cols) or (low % TILE and low != rows):
            raise ValueError(f"{window} is not of whole tiles of {self.layer.shape}")
        if window.cols != cols and window.rows > TILE:
            raise ValueError(f"{window} is neither one tile row high nor {cols} pixels wide")
        if pixels.shape != (window.rows, window.cols) or pixels.dtype != np.dtype(self.layer.dtype):
            raise ValueError(f"{pixels.dtype} pixels {pixels.shape} for {window} of a {self.layer.dtype} layer")
        if self.layer.mask != (valid is not None) or (valid is not None and valid.shape != pixels.shape):
            raise ValueError(
                f"{self.path}: a mask of the window's shape goes with layers that have one, and only those"
            )
        self._next = (window.row, right) if right < cols else (low, 0)

    def _take(self, number: int, tile_row: int, first_col: int, pixels, valid) -> None:
        """Encode (a part of) one tile row of a level and pass it on, halved, to the next level."""

        def encode(col: int):
            part = slice(col * TILE, (col + 1) * TILE)
            return self._encode(
                number, tile_row, first_col + col, pixels[:, part], None if valid is None else valid[:, part]
            )

        level = self._levels[number]
        following = self._levels[number + 1] if number + 1 < len(self._levels) else None
        if following is not None and following.row is None:
            width = following.shape[1]
            following.row = np.empty((TILE, width), dtype=self.layer.dtype)
            following.row_valid = np.empty((TILE, width), dtype=np.uint8) if self.layer.mask else None
        columns = range(-(-pixels.shape[1] // TILE))
        for col, encoded in zip(columns, (self._pool.map if self._pool else map)(encode, columns), strict=True):
            for plane, (data, digest) in enumerate(encoded):
                self.put_tile(number, (tile_row, first_col + col), data, digest, mask=bool(plane))
        last = tile_row + 1 == level.grid[0]
        if following is None or first_col + len(columns) < level.grid[1] or not (tile_row % 2 or last):
            return
        height = following.row_height(tile_row // 2)
        row_valid = None if following.row_valid is None else following.row_valid[:height]
        self._take(number + 1, tile_row // 2, 0, following.row[:height], row_valid)
        if last:
            following.row = following.row_valid = None

    def _encode(self, number: int, tile_row: int, tile_col: int, pixels, valid) -> list[tuple[bytes | None, int]]:
        """(compressed tile or None, pixel digest) of a block and of its mask; halved it goes to the next level."""
        if number + 1 < len(self._levels):
            half, half_valid = reduce2(pixels, valid, self.layer.nodata, self.layer.kind)
            following = self._levels[number + 1]
            top, left = tile_row % 2 * HALF, tile_col * HALF
            place = slice(top, top + half.shape[0]), slice(left, left + half.shape[1])
            following.row[place] = half
            if half_valid is not None:
                following.row_valid[place] = half_valid
        encoded = [self._encode_image(_padded(pixels, self._fill))]
        if valid is not None:
            packed = cpu.packed_mask(_padded(valid, np.uint8(0)))
            empty = not packed.any()
            data = None if empty else cpu.compress(packed, self.layer.level)
            encoded.append((data, self._fill_digests[1] if empty else cpu.pixel_digest_tile(packed)))
        return encoded

    def _encode_image(self, tile: np.ndarray) -> tuple[bytes | None, int]:
        bits = tile.view(f"u{tile.itemsize}")
        fill = self._fill.view(f"u{tile.itemsize}")
        # bits, not values: -0.0 is not 0.0, and NaNs differ
        if bits[0, 0] == fill and (bits == fill).all():
            return None, self._fill_digests[0]
        return cpu.encode_tile(tile, self._predictor, self.layer.level), cpu.pixel_digest_tile(tile)

    def put_tile(
        self,
        level: int,
        tile: tuple[int, int],
        data: bytes | None,
        digest: int | None = None,
        *,
        mask: bool = False,
    ) -> None:
        """Add a tile that is encoded already; in any order, from any thread.

        Parameters
        ----------
        level : int
            0 full resolution, then the overviews.
        tile : (tile row, tile col)
        data : bytes or None
            One ZSTD frame after the layer's predictor (of a mask: of its packed bits); None when all pixels,
            padding included, are the layer's fill.
        digest : int, optional
            `codecs.cpu.pixel_digest_tile` of the decoded tile; needed with `data`.
        mask : bool
            The tile is the mask's.
        """
        plane = self._levels[level].planes[int(mask)]
        if data is not None and (len(data) < FRAME or digest is None):
            raise ValueError(f"tile {tile} of level {level} of {self.path} has {len(data)} bytes and digest {digest}")
        with self._lock, writing(self.path):
            if self._closed or plane.there[tile]:
                raise ValueError(f"tile {tile} of level {level} of {self.path} comes twice or too late")
            if data is not None:
                plane.positions[tile] = self._spool.append(data)
                plane.sizes[tile] = len(data)
                plane.checksums[tile] = cpu.tile_checksum(data)
            plane.digests[tile] = self._fill_digests[int(mask)] if data is None else digest
            plane.there[tile] = True

    def finish(self, tags: dict | None = None) -> CogInfo:
        """Write the file under a temporary name, check it, and give it its name.

        Parameters
        ----------
        tags : dict, optional
            Further tags of the file, over those of the header.

        Raises
        ------
        ValueError
            Tiles are missing.
        SceneError
            `header_lost`: GeoTIFF does not give back what the header says.
        RetryableError
            `check_failed`: the file does not read as it was written. No file is left under the final name.
        """
        for number, level in enumerate(self._levels):
            for plane in level.planes:
                if not plane.there.all():
                    missing = tuple(int(i) for i in np.argwhere(~plane.there)[0])
                    raise ValueError(f"{self.path}: tile {missing} of level {number} was never written")
        try:
            return self._finish(tags or {})
        finally:
            self.abort()

    def _finish(self, tags: dict) -> CogInfo:
        digests = [cpu.pixel_digest(np.stack([p.digests for p in level.planes])) for level in self._levels]
        tags = tags | {DIGEST_TAG: ",".join(digests)}
        if self.layer.mask:
            self._complete_masks()
        levels = self._images(tags)
        layout = layouts.lay_out(levels)
        temporary = self.path.with_name(f".{self.path.name}.{uuid.uuid4().hex}.tmp")
        try:
            with writing(self.path):
                with self._timed("write"):
                    checksum = self._write_file(temporary, layout.head, layouts.tile_order(levels))
                self._beat()
                with self._timed("check"):
                    self._check(temporary, levels, layout, tags)
                with self._timed("write"):
                    # rename after the bytes are on disk: a crash must not leave a whole name on half a file
                    _sync(temporary)
                    os.replace(temporary, self.path)
                    with contextlib.suppress(OSError):  # not every file system can sync a folder
                        _sync(self.path.parent)
                found = os.stat(self.path)
        finally:
            temporary.unlink(missing_ok=True)
        full = self._levels[0].planes
        return CogInfo(
            path=self.path,
            size=found.st_size,
            mtime_ns=found.st_mtime_ns,
            checksum=checksum,
            pixel_digest=digests,
            tiles=sum(int((plane.sizes > 0).sum()) for level in self._levels for plane in level.planes),
            checksums=full[0].checksums,
            mask_checksums=full[1].checksums if self.layer.mask else None,
            seconds={stage: round(value, 6) for stage, value in self.seconds.items()},
        )

    def _complete_masks(self) -> None:
        """Give each image tile a mask tile, also where nothing is valid.

        GDAL, over the network, takes whatever lies behind an image tile for its mask once the ghost area promises one
        there; an absent mask tile makes it read another tile's.
        """
        data = cpu.compress(np.zeros((TILE, TILE // 8), dtype=np.uint8), self.layer.level)
        with writing(self.path):
            position = self._spool.append(data)
        for level in self._levels:
            image, mask = level.planes
            lacking = (image.sizes > 0) & (mask.sizes == 0)
            mask.positions[lacking] = position
            mask.sizes[lacking] = len(data)
            mask.checksums[lacking] = cpu.tile_checksum(data)

    @contextlib.contextmanager
    def _timed(self, stage: str):
        clock = time.perf_counter()
        yield
        self.seconds[stage] += time.perf_counter() - clock

    def _images(self, tags: dict) -> list[tuple[Image, Image | None]]:
        dtype = np.dtype(self.layer.dtype)
        copied, photometric = headers.template_tags(self.header, self.layer.dtype, tags, str(self.path))
        if self.layer.nodata is not None:
            text = self.layer.nodata_text.encode("ascii") + b"\0"
            copied.append((GDAL_NODATA, 2, len(text), text))
        inherited = [entry for entry in copied if entry[0] in INHERITED]
        levels = []
        for number, level in enumerate(self._levels):
            reduced = REDUCED if number else 0
            planes = iter(level.planes)
            plane = next(planes)
            image = Image(
                shape=level.shape,
                subfile=reduced,
                bits=8 * dtype.itemsize,
                sample_format=layouts.SAMPLE_FORMAT[dtype.kind],
                photometric=photometric,
                predictor=self._predictor,
                sizes=plane.sizes,
                checksums=plane.checksums,
                tags=inherited if number else copied,
            )
            mask = next(planes, None)
            levels.append((image, mask and layouts.mask_image(level.shape, reduced | MASK, mask.sizes, mask.checksums)))
        return levels

    def _write_file(self, path: Path, head: bytes, order: list[tuple[int, int, bool]]) -> str:
        """Write the file from its first byte to its last; xxh3-128 of it as hex."""
        state = xxhash.xxh3_128(head)
        # 0o666 and the umask, as any program's output; mkstemp's 0o600 would shut out the user's group
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        with open(fd, "wb", buffering=COPY_BYTES) as file:
            file.write(head)
            waiting = 0
            for number, index, mask in order:
                plane = self._levels[number].planes[int(mask)]
                size = int(plane.sizes.flat[index])
                data = self._spool.read(int(plane.positions.flat[index]), size)
                framed = size.to_bytes(FRAME, "little") + data + data[-FRAME:]
                state.update(framed)
                file.write(framed)
                waiting += len(framed)
                if waiting > SYNC_BYTES:
                    # bit by bit: one fsync of a large file at the end can be silent for minutes
                    file.flush()
                    os.fsync(fd)
                    waiting = 0
                    self._beat()
        return state.hexdigest()

    def _check(self, path: Path, levels, layout, tags: dict) -> None:
        """Compare header, index and one tile row a level with what was meant to be written."""
        offsets = iter(layout.offsets)
        planned = [[(part, next(offsets)) for part in level if part is not None] for level in levels]
        digests = [[plane.digests for plane in level.planes] for level in self._levels]
        problems = compare_index(path, planned)
        # the name is the seed: the same campaign checks the same tiles
        problems = problems or check_tile_rows(path, digests, seed=self.path.name)
        if problems:
            raise RetryableError(
                f"{self.path} does not read as it was written: {problems[0]}; it was not kept",
                "check_failed",
            )
        problems = headers.lost(self.header, tags, path)
        if problems:
            raise SceneError(f"{self.path}: GeoTIFF does not keep this metadata: {'; '.join(problems)}", "header_lost")


def _padded(block: np.ndarray, fill: np.generic) -> np.ndarray:
    """A whole C-contiguous tile of a block that may be cut short at the raster's edge."""
    if block.shape == (TILE, TILE):
        return np.ascontiguousarray(block)
    tile = np.full((TILE, TILE), fill, dtype=block.dtype)
    tile[: block.shape[0], : block.shape[1]] = block
    return tile


def _sync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)

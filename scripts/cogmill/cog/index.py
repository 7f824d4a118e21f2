"""Index of a TIFF file: which images it holds and where each of their tiles lies. Nothing is decoded.

TIFF 6.0 and BigTIFF, both byte orders. Every number of the file is held against the file's size before it is
used, so that a damaged or hostile file is an error and never a crash, an endless loop or a huge allocation.
"""

import os
import re
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from cogmill.cog.files import pread, reading
from cogmill.errors import SceneError
from cogmill.grids import TILE
from cogmill.masks import nodata_in

ZSTD = 50000
TILE_CHECKSUMS = 65117  # private tag of ours: xxh3-64 of every compressed tile of the image
GDAL_NODATA = 42113

# TIFF field types as NumPy types; ASCII is bytes, rationals are left as pairs
TYPES = {1: "u1", 2: "S1", 3: "u2", 4: "u4", 5: "u8", 6: "i1", 7: "u1", 8: "i2", 9: "i4", 10: "u8", 11: "f4"}
TYPES |= {12: "f8", 13: "u4", 16: "u8", 17: "i8", 18: "u8"}

DTYPES = {(kind, bits): f"{name}{bits}" for kind, name in ((1, "uint"), (2, "int")) for bits in (8, 16, 32, 64)}
DTYPES |= {(3, 32): "float32", (3, 64): "float64"}

# far more than any pyramid has; what goes on longer is a chain that a damaged pointer made
MAX_DIRECTORIES = 4096
MAX_ENTRIES = 100_000
GHOST_BYTES = 2048
GHOST_START = b"GDAL_STRUCTURAL_METADATA_SIZE="


@dataclass(frozen=True)
class Entry:
    """One tag of a directory: TIFF field type, number of values, and where in the file they lie."""

    kind: int
    count: int
    offset: int


@dataclass(frozen=True)
class Directory:
    offset: int
    entries: dict[int, Entry]


class TiffStructure:
    """The directories of a TIFF file and the values of their tags.

    Parameters
    ----------
    name : str
        For error messages.
    size : int
        Of the file, in bytes.
    read : callable (offset, size) -> bytes
    """

    def __init__(self, name: str, size: int, read: Callable[[int, int], bytes]):
        self.name, self.size, self._read = name, size, read
        head = read(0, min(16, size))
        if head[:2] not in (b"II", b"MM") or len(head) < 8:
            raise SceneError(f"{name} is not a TIFF file: it begins with {head[:4]!r}", "not_tiff")
        self.byteorder = "<" if head[:2] == b"II" else ">"
        magic = self._integer(head, 2, 2)
        if magic not in (42, 43):
            raise SceneError(f"{name} is not a TIFF file: its magic number is {magic}, not 42 or 43", "not_tiff")
        self.big = magic == 43
        if self.big and (len(head) < 16 or self._integer(head, 4, 2) != 8):
            raise self.damage("its BigTIFF header is broken")
        self.header_size = 16 if self.big else 8
        first = self._integer(head, 8, 8) if self.big else self._integer(head, 4, 4)
        self.directories = self._walk(first)
        # GDAL's structural metadata behind the header, {} where there is none
        self.ghost = self._read_ghost()
        # GDAL notes there when it changes a file that had the layout
        kept = self.ghost.get("KNOWN_INCOMPATIBLE_EDITION", "NO") == "NO"
        self.layout_cog = self.ghost.get("LAYOUT") == "IFDS_BEFORE_DATA" and kept
        self._unclaimed = size

    def claim(self, size: int) -> None:
        """Count `size` bytes as one image's own.

        Images that shared their tables would make much memory of a small file.
        """
        self._unclaimed -= size
        if self._unclaimed < 0:
            raise self.damage("its tile tables are longer than the file")

    def damage(self, what: str) -> SceneError:
        return SceneError(f"{self.name}: {what}; the file is damaged, fetch it anew", "damaged_index")

    def _integer(self, data: bytes, position: int, size: int) -> int:
        return int.from_bytes(data[position : position + size], "little" if self.byteorder == "<" else "big")

    def read(self, offset: int, size: int, what: str) -> bytes:
        if offset + size > self.size:
            raise self.damage(f"{what} ends at byte {offset + size}, the file has {self.size}")
        data = self._read(offset, size)
        if len(data) != size:
            raise self.damage(f"{what} cannot be read whole")
        return data

    def _walk(self, offset: int) -> list[Directory]:
        directories, seen, entries = [], set(), 0
        while offset:
            if offset in seen:
                raise self.damage(f"its directories form a loop at byte {offset}")
            if len(directories) == MAX_DIRECTORIES:
                raise self.damage(f"it has more than {MAX_DIRECTORIES} directories")
            seen.add(offset)
            directory, offset = self._directory(offset, MAX_ENTRIES - entries)
            entries += len(directory.entries)
            directories.append(directory)
        if not directories:
            raise self.damage("it has no image")
        return directories

    def _directory(self, offset: int, limit: int) -> tuple[Directory, int]:
        head, step, word = (8, 20, 8) if self.big else (2, 12, 4)
        what = f"directory at byte {offset}"
        number = self._integer(self.read(offset, head, what), 0, head)
        if number > limit:
            raise self.damage(f"{what} says it has {number} tags")
        data = self.read(offset + head, number * step + word, what)
        entries = {}
        for at in range(0, number * step, step):
            tag, kind, count = (
                self._integer(data, at, 2),
                self._integer(data, at + 2, 2),
                self._integer(data, at + 4, word),
            )
            if kind not in TYPES:
                continue  # TIFF 6.0: readers skip field types they do not know
            inside = np.dtype(TYPES[kind]).itemsize * count <= word
            place = offset + head + at + 4 + word
            where = place if inside else self._integer(data, at + 4 + word, word)
            entries.setdefault(tag, Entry(kind, count, where))
        return Directory(offset, entries), self._integer(data, number * step, word)

    def raw(self, directory: Directory, tag: int) -> bytes:
        """The bytes of a tag, in the file's byte order."""
        entry = directory.entries[tag]
        return self.read(entry.offset, np.dtype(TYPES[entry.kind]).itemsize * entry.count, f"tag {tag}")

    def values(self, directory: Directory, tag: int) -> np.ndarray:
        """The numbers of a tag, in native byte order."""
        kind = np.dtype(TYPES[directory.entries[tag].kind])
        data = np.frombuffer(self.raw(directory, tag), dtype=kind.newbyteorder(self.byteorder))
        return data.astype(kind, copy=False)

    def number(self, directory: Directory, tag: int, default: int | None = None) -> int:
        """The first value of a tag as int; `default` where it is absent."""
        entry = directory.entries.get(tag)
        if entry is None or entry.count == 0:
            if default is None:
                raise self.damage(f"directory at byte {directory.offset} lacks tag {tag}")
            return default
        if np.dtype(TYPES[entry.kind]).kind not in "ui":
            raise self.damage(f"tag {tag} is not a whole number")
        first = Directory(directory.offset, {tag: Entry(entry.kind, 1, entry.offset)})
        return int(self.values(first, tag)[0])

    def _read_ghost(self) -> dict[str, str]:
        data = self._read(self.header_size, min(GHOST_BYTES, self.size - self.header_size))
        found = re.match(re.escape(GHOST_START) + rb"(\d{6}) bytes\n", data)
        if not found:
            return {}
        text = data[found.end() : found.end() + int(found[1])].decode("ascii", "replace")
        return dict(line.strip().split("=", 1) for line in text.splitlines() if "=" in line)


@dataclass(frozen=True)
class ImageIndex:
    """One image of a file: full resolution, an overview, or a mask.

    Parameters
    ----------
    path : str
    shape : (rows, cols)
    tile : (rows, cols)
        Of a tile; of a striped image, of a strip.
    tiled : bool
    dtype : str or None
        NumPy name; None for what has none of the sizes 8 to 64 (1-bit masks, 12-bit samples, complex).
    bits, compression, predictor, planar, samples, photometric : int
        TIFF's own numbers; `planar` 1 chunky, 2 separate.
    byteorder : {"<", ">"}
    offsets, counts : ndarray of uint64 (tile rows, tile cols)
        Count 0: the tile is absent and reads as `fill`.
    checksums : ndarray of uint64 (tile rows, tile cols) or None
        xxh3-64 of the compressed tiles, where the file holds them and GDAL did not change it since.
    kind : {"image", "mask"}
    fill : int, float or None
        Value of absent tiles; None where the file's nodata text is no value of `dtype`.
    directory : int
        Where the image's directory begins.
    """

    path: str
    shape: tuple[int, int]
    tile: tuple[int, int]
    tiled: bool
    dtype: str | None
    bits: int
    compression: int
    predictor: int
    planar: int
    samples: int
    photometric: int
    byteorder: str
    offsets: np.ndarray = field(repr=False)
    counts: np.ndarray = field(repr=False)
    checksums: np.ndarray | None = field(repr=False)
    kind: str
    fill: int | float | None
    directory: int


@dataclass(frozen=True)
class CogIndex:
    """Images of a file: full resolution, then overviews from large to small, and their masks.

    `masks[i]` belongs to `images[i]`, None where there is none. `ghost` is GDAL's structural metadata, `tags` the
    short tags (up to 64 KiB) of the first image: text as str, numbers as arrays.
    """

    path: str
    size: int
    big: bool
    layout_cog: bool
    images: tuple[ImageIndex, ...]
    masks: tuple[ImageIndex | None, ...]
    ghost: dict
    tags: dict = field(repr=False)


def read_index(path, band: int = 1) -> CogIndex:
    """Index the band `band` (1-based) of a TIFF file.

    Raises
    ------
    SceneError
        `unreadable`; `not_tiff`; `damaged_index` where a count or an offset points out of the file, directories
        loop or numbers contradict each other; `band_missing`.
    RetryableError
        `io_error`.
    """
    with reading(path):
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            size = os.fstat(fd).st_size
            return _index(TiffStructure(str(path), size, lambda offset, count: pread(fd, count, offset)), band)
        finally:
            os.close(fd)


def _index(tiff: TiffStructure, band: int) -> CogIndex:
    first = tiff.directories[0]
    main = _image(tiff, first, band, "image", None)
    if not 1 <= band <= main.samples:
        raise SceneError(f"{tiff.name} has {main.samples} bands, band {band} was asked for", "band_missing")
    images, masks = [main], []
    for directory in tiff.directories[1:]:
        reduced, mask = _subfile(tiff, directory)
        if mask:
            masks.append(_image(tiff, directory, 1, "mask", None))
        elif reduced:
            images.append(_image(tiff, directory, band, "image", main))
    images[1:] = sorted(images[1:], key=lambda image: -image.shape[0] * image.shape[1])
    by_shape = {mask.shape: mask for mask in reversed(masks)}
    return CogIndex(
        path=tiff.name,
        size=tiff.size,
        big=tiff.big,
        layout_cog=tiff.layout_cog,
        images=tuple(images),
        masks=tuple(by_shape.get(image.shape) for image in images),
        ghost=tiff.ghost,
        tags=_short_tags(tiff, first),
    )


def _subfile(tiff: TiffStructure, directory: Directory) -> tuple[bool, bool]:
    """(reduced resolution, mask) by NewSubfileType, or by the older SubfileType."""
    new = tiff.number(directory, 254, 0)
    return bool(new & 1) or tiff.number(directory, 255, 0) == 2, bool(new & 4)


def _image(tiff: TiffStructure, directory: Directory, band: int, kind: str, main: ImageIndex | None) -> ImageIndex:
    cols, rows = tiff.number(directory, 256), tiff.number(directory, 257)
    samples, planar = tiff.number(directory, 277, 1), tiff.number(directory, 284, 1)
    tiled = 324 in directory.entries or 322 in directory.entries
    if tiled:
        tile = tiff.number(directory, 323), tiff.number(directory, 322)
    else:
        tile = min(tiff.number(directory, 278, rows), rows), cols
    if min(rows, cols, samples, *tile) < 1 or max(rows, cols, *tile) >= 1 << 31:
        raise tiff.damage(f"an image of {rows} x {cols} pixels in tiles of {tile[0]} x {tile[1]}, {samples} samples")
    grid = -(-rows // tile[0]), -(-cols // tile[1])
    planes = samples if planar == 2 else 1
    plane = min(band, planes) - 1
    offsets, counts = _places(tiff, directory, tiled, grid, planes, plane)
    bits, sample_format = _common(tiff, directory, 258, 1), _common(tiff, directory, 339, 1)
    dtype = DTYPES.get((sample_format, bits))
    return ImageIndex(
        path=tiff.name,
        shape=(rows, cols),
        tile=tile,
        tiled=tiled,
        dtype=dtype,
        bits=bits,
        compression=tiff.number(directory, 259, 1),
        predictor=tiff.number(directory, 317, 1),
        planar=planar,
        samples=samples,
        photometric=tiff.number(directory, 262, 1),
        byteorder=tiff.byteorder,
        offsets=offsets,
        counts=counts,
        checksums=_checksums(tiff, directory, grid, planes),
        kind=kind,
        fill=0 if kind == "mask" else main.fill if main else _fill(tiff, directory, dtype),
        directory=directory.offset,
    )


def _common(tiff: TiffStructure, directory: Directory, tag: int, default: int) -> int:
    """The value that all samples share; -1 where they differ."""
    entry = directory.entries.get(tag)
    if entry is None:
        return default
    if entry.count > 1 and len(np.unique(tiff.values(directory, tag))) > 1:
        return -1
    return tiff.number(directory, tag, default)


def _places(tiff: TiffStructure, directory: Directory, tiled: bool, grid, planes: int, plane: int):
    """Offsets and counts (tile rows, tile cols) of one plane, held against the file's size."""
    wanted = grid[0] * grid[1] * planes
    found = []
    for tag in (324, 325) if tiled else (273, 279):
        entry = directory.entries.get(tag)
        if entry is None or entry.count != wanted:
            raise tiff.damage(f"tag {tag} has {entry.count if entry else 0} values for {wanted} tiles")
        if np.dtype(TYPES[entry.kind]).kind != "u":
            raise tiff.damage(f"tag {tag} is not a whole number")
        tiff.claim(entry.count * np.dtype(TYPES[entry.kind]).itemsize)
        values = tiff.values(directory, tag).astype(np.uint64)
        found.append(values.reshape(planes, *grid)[plane])
    offsets, counts = found
    size = np.uint64(tiff.size)
    # offsets first: a sum of two numbers of the file could wrap
    outside = (counts > 0) & (
        (offsets < tiff.header_size) | (offsets > size) | (counts > size - np.minimum(offsets, size))
    )
    if outside.any():
        row, col = (int(i) for i in np.argwhere(outside)[0])
        raise tiff.damage(
            f"tile (row {row}, column {col}) of the image of directory {directory.offset} should lie at byte "
            f"{offsets[row, col]} with {counts[row, col]} bytes, the file has {tiff.size} bytes (cut short?)"
        )
    return offsets, counts


def _checksums(tiff: TiffStructure, directory: Directory, grid, planes: int) -> np.ndarray | None:
    entry = directory.entries.get(TILE_CHECKSUMS)
    if not tiff.layout_cog:
        return None  # whoever changed the file left the checksums as they were
    if entry is None or planes != 1 or entry.kind != 1 or entry.count != 8 * grid[0] * grid[1]:
        return None  # not the tag that our writer writes
    return np.frombuffer(tiff.raw(directory, TILE_CHECKSUMS), dtype="<u8").astype(np.uint64).reshape(grid)


def _fill(tiff: TiffStructure, directory: Directory, dtype: str | None) -> int | float | None:
    if GDAL_NODATA not in directory.entries:
        return 0
    if dtype is None:
        return None
    return parse_nodata(tiff.raw(directory, GDAL_NODATA)[:64].split(b"\0")[0].decode("ascii", "replace"), dtype)


def parse_nodata(text: str, dtype: str) -> int | float | None:
    """GDAL's nodata text as a number of `dtype`; None where it is not one."""
    if "_" in text:  # a number for Python alone
        return None
    for number in (int, float):  # int first: it keeps 64 bits exact
        try:
            return nodata_in(number(text), dtype)
        except ValueError:
            continue
    return None


def _short_tags(tiff: TiffStructure, directory: Directory) -> dict:
    tags = {}
    for tag, entry in directory.entries.items():
        if np.dtype(TYPES[entry.kind]).itemsize * entry.count > 1 << 16:
            continue
        if entry.kind == 2:
            tags[tag] = tiff.raw(directory, tag).rstrip(b"\0").decode("utf-8", "replace")
        else:
            tags[tag] = tiff.values(directory, tag)
    return tags


def why_not_readable(image: ImageIndex) -> str | None:
    """Why `CogReader` cannot read the tiles of this image; None when it can."""
    if not image.tiled:
        return "it is in strips, not in tiles"
    if image.compression != ZSTD:
        return f"its compression is {image.compression}, not ZSTD ({ZSTD})"
    if image.samples > 1 and image.planar != 2:
        return f"it interleaves {image.samples} bands by pixel"
    if image.kind == "mask":
        return None if image.bits == 1 and image.predictor == 1 else "its mask is not of plain 1-bit samples"
    if image.dtype is None:
        return f"its samples of {image.bits} bits are not whole numbers or floats of 8, 16, 32 or 64 bits"
    if image.predictor not in (1, 2, 3) or (image.predictor == 3 and not image.dtype.startswith("float")):
        return f"predictor {image.predictor} does not exist for {image.dtype}"
    if image.tile[0] * image.tile[1] * np.dtype(image.dtype).itemsize > 1 << 24:
        return f"its tiles of {image.tile[0]} x {image.tile[1]} pixels have more than 16 MiB"
    if image.fill is None and (image.counts == 0).any():
        return "it has absent tiles and a nodata value that its type cannot hold"
    return None


def why_not_conforming(index: CogIndex) -> str | None:
    """Why a file must be rewritten for the COG store; None when its tiles can be used in place."""
    image = index.images[0]
    reason = why_not_readable(image)
    if reason:
        return reason
    if image.tile != (TILE, TILE):
        return f"its tiles have {image.tile[0]} x {image.tile[1]} pixels, not {TILE} x {TILE}"
    if image.byteorder != "<":
        return "it is big-endian"
    if index.masks[0] is not None:
        return "it has an internal mask"
    if image.fill is None:
        return f"its nodata text {index.tags.get(GDAL_NODATA)!r} is no value of {image.dtype}"
    return None

"""Bytes of a COG in front of its tiles: header, GDAL's ghost area, directories, tables.

The layout is the one of GDAL's COG driver: all directories first, then the tiles, smallest overview first, the
full resolution last, each tile between its size as uint32 and a repetition of its last four bytes, each mask tile
behind its image tile.
"""

import struct
from dataclasses import dataclass

import numpy as np

from cogmill.cog.index import GHOST_START, TILE_CHECKSUMS, ZSTD
from cogmill.grids import TILE

BYTE, SHORT, LONG, LONG8 = 1, 3, 4, 16  # TIFF field types
TABLES = {324, 325, TILE_CHECKSUMS}
CLASSIC_LIMIT = (1 << 32) - 1  # the largest file whose offsets fit TIFF's 32 bits
FRAME = 4  # bytes before, and after, each tile

REDUCED, MASK = 1, 4  # bits of NewSubfileType
SAMPLE_FORMAT = {"u": 1, "i": 2, "f": 3}  # by NumPy's kind


@dataclass(frozen=True)
class Image:
    """One directory to be: an image, an overview or a mask.

    `sizes` are the compressed tile sizes (0: absent tile) and `checksums` their xxh3-64, both (tile rows, tile
    cols); `tags` are further tags as (tag, type, count, little-endian bytes).
    """

    shape: tuple[int, int]
    subfile: int
    bits: int
    sample_format: int
    photometric: int
    predictor: int
    sizes: np.ndarray
    checksums: np.ndarray
    tags: list[tuple[int, int, int, bytes]]


@dataclass(frozen=True)
class Layout:
    """`head` is the file up to its first tile; `offsets` per image (0: absent tile); `size` of the file."""

    head: bytes
    offsets: list[np.ndarray]
    size: int
    big: bool


def lay_out(levels: list[tuple[Image, Image | None]]) -> Layout:
    """Place the images of a file; BigTIFF when 32-bit offsets do not reach its end.

    Parameters
    ----------
    levels : list of (image, mask or None)
        Full resolution first.
    """
    layout = _lay_out(levels, big=False)
    return layout or _lay_out(levels, big=True)


def ghost(mask: bool) -> bytes:
    """GDAL's structural metadata; GDAL changes NO to YES in place, hence the space behind it."""
    text = (
        "LAYOUT=IFDS_BEFORE_DATA\nBLOCK_ORDER=ROW_MAJOR\nBLOCK_LEADER=SIZE_AS_UINT4\n"
        "BLOCK_TRAILER=LAST_4_BYTES_REPEATED\nKNOWN_INCOMPATIBLE_EDITION=NO\n "
    )
    text += "MASK_INTERLEAVED_WITH_IMAGERY=YES\n" if mask else ""
    return GHOST_START + f"{len(text):06d} bytes\n{text}".encode("ascii")


def tile_order(levels: list[tuple[Image, Image | None]]) -> list[tuple[int, int, bool]]:
    """(level, flat tile index, is mask) of the tiles that exist, in file order."""
    order = []
    for level in reversed(range(len(levels))):
        image, mask = levels[level]
        sizes = [image.sizes.ravel()] + ([mask.sizes.ravel()] if mask else [])
        for index in range(image.sizes.size):
            order += [(level, index, bool(which)) for which, size in enumerate(sizes) if size[index]]
    return order


def _lay_out(levels: list[tuple[Image, Image | None]], big: bool) -> Layout | None:
    images = [image for level in levels for image in level if image is not None]
    # the tables' lengths do not depend on what they hold, so that blank ones tell where the tiles begin
    start = len(_head(images, [np.zeros_like(image.sizes) for image in images], big))
    placed = {}
    end = start
    for image, mask in reversed(levels):
        pair = [image] if mask is None else [image, mask]
        sizes = np.stack([part.sizes.ravel() for part in pair], axis=1).astype(np.uint64)
        framed = np.where(sizes > 0, sizes + np.uint64(2 * FRAME), np.uint64(0)).ravel()
        ends = np.cumsum(framed, dtype=np.uint64) + np.uint64(end)
        offsets = np.where(framed > 0, ends - framed + np.uint64(FRAME), np.uint64(0)).reshape(sizes.shape)
        placed |= {id(part): offsets[:, i].reshape(part.sizes.shape) for i, part in enumerate(pair)}
        end = int(ends[-1])
    if not big and end > CLASSIC_LIMIT:
        return None
    offsets = [placed[id(image)] for image in images]
    return Layout(_head(images, offsets, big), offsets, end, big)


def _head(images: list[Image], offsets: list[np.ndarray], big: bool) -> bytes:
    head = bytearray(struct.pack("<2sHHHQ", b"II", 43, 8, 0, 0) if big else struct.pack("<2sHI", b"II", 42, 0))
    head += ghost(any(image.subfile & MASK for image in images))
    head += bytes(-len(head) % 8)
    fields = [_fields(image, table, big) for image, table in zip(images, offsets, strict=True)]
    starts = [len(head)]
    for of_image in fields:
        starts.append(starts[-1] + _directory_size(of_image, big))
    word = "<Q" if big else "<I"
    struct.pack_into(word, head, 8 if big else 4, starts[0])
    tables = bytearray()
    for i, of_image in enumerate(fields):
        following = starts[i + 1] if i + 1 < len(fields) else 0
        head += _directory(of_image, starts[i], following, starts[-1], tables, big)
    return bytes(head + tables)


def _fields(image: Image, offsets: np.ndarray, big: bool) -> list[tuple[int, int, int, bytes]]:
    """Tags of one directory in ascending order, as (tag, type, count, bytes)."""
    rows, cols = image.shape

    def number(tag, value, kind=SHORT):
        return tag, kind, 1, struct.pack("<H" if kind == SHORT else "<I", value)

    size = LONG if max(rows, cols) > 0xFFFF else SHORT
    fields = [
        number(256, cols, size),
        number(257, rows, size),
        number(258, image.bits),
        number(259, ZSTD),
        number(262, image.photometric),
        number(277, 1),
        number(284, 1),
        number(317, image.predictor),
        number(322, TILE),
        number(323, TILE),
        (324, LONG8 if big else LONG, offsets.size, offsets.astype("<u8" if big else "<u4").tobytes()),
        (325, LONG, image.sizes.size, image.sizes.astype("<u4").tobytes()),
        number(339, image.sample_format),
        (TILE_CHECKSUMS, BYTE, 8 * image.checksums.size, image.checksums.astype("<u8").tobytes()),
        *image.tags,
    ]
    if image.subfile:
        fields.append(number(254, image.subfile, LONG))
    return sorted(fields)


def _directory_size(fields: list, big: bool) -> int:
    step, word = (20, 8) if big else (12, 4)
    fixed = (8 if big else 2) + step * len(fields) + word
    near = [len(data) for tag, _, _, data in fields if tag not in TABLES and len(data) > word]
    return _padded(fixed) + sum(_padded(size) for size in near)


def _directory(fields: list, start: int, following: int, tables_start: int, tables: bytearray, big: bool) -> bytes:
    """Bytes of one directory and its short values; its long tables are put behind `tables`."""
    step, word = (20, 8) if big else (12, 4)
    entry, pointer = ("<HHQ", "<Q") if big else ("<HHI", "<I")
    near_start = start + _padded((8 if big else 2) + step * len(fields) + word)
    out, near = bytearray(struct.pack("<Q" if big else "<H", len(fields))), bytearray()
    for tag, kind, count, data in fields:
        out += struct.pack(entry, tag, kind, count)
        if len(data) <= word:
            out += data.ljust(word, b"\0")
            continue
        # the long tables come behind all directories, as GDAL has them: who wants one level reads little
        base, store = (tables_start, tables) if tag in TABLES else (near_start, near)
        out += struct.pack(pointer, base + len(store))
        store += data.ljust(_padded(len(data)), b"\0")
    out += struct.pack(pointer, following)
    return bytes(out.ljust(near_start - start, b"\0") + near)


def _padded(size: int) -> int:
    return -(-size // 8) * 8


def mask_image(shape: tuple[int, int], subfile: int, sizes: np.ndarray, checksums: np.ndarray) -> Image:
    """The directory of a 1-bit mask (photometric 4: transparency mask)."""
    return Image(shape, subfile, 1, SAMPLE_FORMAT["u"], 4, 1, sizes, checksums, [])

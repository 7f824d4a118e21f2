"""Strict checks of COGs: of a whole file, and those that the writer does before a file gets its name."""

import os
import random
from pathlib import Path

import numpy as np

from cogmill.codecs import cpu
from cogmill.cog.files import pread, reading
from cogmill.cog.index import CogIndex, ImageIndex, read_index, why_not_readable
from cogmill.cog.layout import FRAME
from cogmill.cog.reader import decode
from cogmill.errors import DamagedTileError, SceneError
from cogmill.grids import TILE

SIDECARS = (".aux.xml", ".msk", ".ovr")
GHOST = {
    "LAYOUT": "IFDS_BEFORE_DATA",
    "BLOCK_ORDER": "ROW_MAJOR",
    "BLOCK_LEADER": "SIZE_AS_UINT4",
    "BLOCK_TRAILER": "LAST_4_BYTES_REPEATED",
    "KNOWN_INCOMPATIBLE_EDITION": "NO",
}


def validate_cog(path) -> list[str]:
    """Problems of a file as a COG of cogmill; [] when it is one.

    Checked are: one little-endian band in 512 x 512 ZSTD tiles; overviews by halves until one tile holds all;
    GDAL's ghost area and what it promises (directories first, smallest overview first, tiles in row-major order,
    each mask tile behind its image tile, leaders, trailers); the checksums that the file holds; no sidecar.

    Raises
    ------
    RetryableError
        `io_error`.
    """
    try:
        index = read_index(path)
    except SceneError as error:
        return [str(error)]
    problems = [problem for image in _parts(index) for problem in _image_problems(image)]
    problems += _ghost_problems(index) + _overview_problems(index) + _mask_problems(index) + _order_problems(index)
    problems += [f"it has a sidecar: {path}{end}" for end in SIDECARS if Path(f"{path}{end}").exists()]
    with reading(path):
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            for image in _parts(index):
                problems += _frame_problems(fd, image)
        finally:
            os.close(fd)
    return problems


def _parts(index: CogIndex) -> list[ImageIndex]:
    return [part for pair in zip(index.images, index.masks, strict=True) for part in pair if part is not None]


def _name(image: ImageIndex) -> str:
    return f"{image.kind} of {image.shape[0]} x {image.shape[1]} pixels"


def _image_problems(image: ImageIndex) -> list[str]:
    problems = []
    reason = why_not_readable(image)
    if reason:
        problems.append(f"{_name(image)}: {reason}")
    if image.tile != (TILE, TILE):
        problems.append(f"{_name(image)}: its tiles have {image.tile[0]} x {image.tile[1]} pixels, not {TILE} x {TILE}")
    if image.samples != 1:
        problems.append(f"{_name(image)}: it has {image.samples} bands, not one")
    if image.byteorder != "<":
        problems.append(f"{_name(image)}: it is big-endian")
    return problems


def _ghost_problems(index: CogIndex) -> list[str]:
    wanted = GHOST | ({"MASK_INTERLEAVED_WITH_IMAGERY": "YES"} if index.masks[0] is not None else {})
    return [
        f"GDAL's structural metadata says {key}={index.ghost.get(key)}, not {value}"
        for key, value in wanted.items()
        if index.ghost.get(key) != value
    ]


def _overview_problems(index: CogIndex) -> list[str]:
    problems = []
    wanted = index.images[0].shape
    for image in index.images[1:]:
        wanted = -(-wanted[0] // 2), -(-wanted[1] // 2)
        if image.shape != wanted:
            problems.append(
                f"an overview has {image.shape[0]} x {image.shape[1]} pixels, not {wanted[0]} x {wanted[1]}"
            )
            break
    if max(index.images[-1].shape) > TILE:
        problems.append(f"its smallest image of {index.images[-1].shape} pixels does not fit one tile: overviews lack")
    return problems


def _mask_problems(index: CogIndex) -> list[str]:
    problems = []
    if any((mask is None) != (index.masks[0] is None) for mask in index.masks):
        problems.append("some of its images have a mask and some have not")
    for image, mask in zip(index.images, index.masks, strict=True):
        # the ghost area promises a mask tile behind each image tile, and GDAL reads what it finds there
        if mask is None:
            continue
        if mask.counts.shape != image.counts.shape or ((image.counts > 0) & (mask.counts == 0)).any():
            problems.append(f"{_name(image)}: some of its tiles have no mask tile behind them")
    return problems


def _order_problems(index: CogIndex) -> list[str]:
    problems = []
    directories = [image.directory for image in _parts(index)]
    starts = []
    for image, mask in zip(reversed(index.images), reversed(index.masks), strict=True):
        # a mask in other tiles is named elsewhere
        pair = [image] if mask is None or mask.counts.shape != image.counts.shape else [image, mask]
        starts.append(np.stack([part.offsets.ravel() * (part.counts.ravel() > 0) for part in pair], axis=1).ravel())
    tiles = np.concatenate(starts)
    tiles = tiles[tiles > 0]
    if min(directories) != index.images[0].directory:
        problems.append("its first directory is not the full resolution's")
    if len(tiles) and max(directories) > tiles.min():
        problems.append(f"its directory at byte {max(directories)} lies behind tile data at byte {tiles.min()}")
    back = np.flatnonzero(np.diff(tiles.astype(np.int64)) <= 0)
    if len(back):
        problems.append(
            f"the tile at byte {tiles[back[0] + 1]} should lie behind the one at byte {tiles[back[0]]}: tiles are "
            "not in row-major order from the smallest overview to the full resolution"
        )
    return problems


def _frame_problems(fd: int, image: ImageIndex, rows: list[int] | None = None) -> list[str]:
    """Wrong leaders, trailers and checksums of the tiles in `rows` (all by default)."""
    problems = []
    for row in range(image.counts.shape[0]) if rows is None else rows:
        for col in range(image.counts.shape[1]):
            offset, count = int(image.offsets[row, col]), int(image.counts[row, col])
            if not count:
                continue
            framed = pread(fd, count + 2 * FRAME, offset - FRAME)
            where = f"{_name(image)}: tile (row {row}, column {col})"
            if framed[:FRAME] != (count & 0xFFFFFFFF).to_bytes(FRAME, "little"):
                problems.append(f"{where}: its leader is {framed[:FRAME].hex()}, its size {count}")
            data = framed[FRAME : FRAME + count]
            if framed[FRAME + count :] != data[-FRAME:]:
                problems.append(f"{where}: its trailer does not repeat its last four bytes")
            if image.checksums is not None and cpu.tile_checksum(data) != int(image.checksums[row, col]):
                problems.append(f"{where}: its bytes do not have the checksum in the file")
    return problems


def compare_index(path, planned: list[list[tuple]]) -> list[str]:
    """What the index of a file that was just written says otherwise than planned.

    Parameters
    ----------
    path : path-like
    planned : list of [(layout.Image, offsets), ...]
        Per level: the image, then its mask if it has one.
    """
    try:
        index = read_index(path)
    except SceneError as error:
        return [str(error)]
    problems = _ghost_problems(index)
    found = [[part for part in pair if part is not None] for pair in zip(index.images, index.masks, strict=True)]
    if [len(pair) for pair in found] != [len(pair) for pair in planned]:
        return [*problems, f"it has {len(found)} levels instead of {len(planned)}, or other masks"]
    for got_pair, want_pair in zip(found, planned, strict=True):
        for got, (want, offsets) in zip(got_pair, want_pair, strict=True):
            same = (got.shape, got.bits, got.predictor) == (want.shape, want.bits, want.predictor)
            same = same and np.array_equal(got.offsets, offsets) and np.array_equal(got.counts, want.sizes)
            if not (same and got.checksums is not None and np.array_equal(got.checksums, want.checksums)):
                problems.append(f"the directory of the {_name(got)} differs")
    return problems


def check_tile_rows(path, digests: list[list[np.ndarray]], seed: str) -> list[str]:
    """Problems of one tile row of each level, chosen by `seed`: framing, checksums, pixels as libzstd decodes.

    Parameters
    ----------
    path : path-like
    digests : list of [ndarray of uint64 (tile rows, tile cols), ...]
        Per level: `codecs.cpu.pixel_digest_tile` of each tile of the image, then of the mask.
    seed : str
    """
    index = read_index(path)
    chosen = random.Random(seed)
    problems = []
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        for number, of_level in enumerate(digests):
            row = chosen.randrange(of_level[0].shape[0])
            for image, wanted in zip((index.images[number], index.masks[number]), of_level, strict=False):
                problems += _frame_problems(fd, image, [row])
                problems += _pixel_problems(fd, image, row, wanted[row])
    finally:
        os.close(fd)
    return problems


def _pixel_problems(fd: int, image: ImageIndex, row: int, wanted: np.ndarray) -> list[str]:
    problems = []
    for col in np.flatnonzero(image.counts[row]):
        where = f"{_name(image)}: tile (row {row}, column {col})"
        data = pread(fd, int(image.counts[row, col]), int(image.offsets[row, col]))
        try:
            pixels = decode(image, data)
        except DamagedTileError as error:
            problems.append(f"{where}: {error}")
            continue
        stored = cpu.packed_mask(pixels) if image.kind == "mask" else pixels
        if cpu.pixel_digest_tile(stored) != int(wanted[col]):
            problems.append(f"{where}: its pixels are not those that were encoded")
    return problems

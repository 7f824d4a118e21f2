"""Tiles to bytes and back on the CPU: TIFF predictors in Numba, ZSTD by libzstd, checksums by xxHash.

Predictor 2 is the horizontal differencing of TIFF 6.0 (section 14), predictor 3 the floating point predictor
of Adobe Photoshop TIFF Technical Note 3. Everything here lets go of the GIL: plain threads use all cores.
"""

import base64
import threading

import numpy as np
import xxhash
import zstandard

from cogmill.errors import DamagedTileError
from cogmill.grids import TILE
from cogmill.kernels import njit

NO_PREDICTOR, HORIZONTAL, FLOATING_POINT = 1, 2, 3

_contexts = threading.local()


@njit
def _difference(pixels, out):
    rows, cols = pixels.shape
    for r in range(rows):
        out[r, 0] = pixels[r, 0]
        for c in range(1, cols):
            out[r, c] = pixels[r, c] - pixels[r, c - 1]


@njit
def _accumulate(pixels):
    rows, cols = pixels.shape
    for r in range(rows):
        for c in range(1, cols):
            pixels[r, c] = pixels[r, c] + pixels[r, c - 1]


@njit
def _difference_planes(raw, out):
    rows, cols, size = raw.shape
    for r in range(rows):
        before = np.uint8(0)
        for plane in range(size):
            for c in range(cols):
                byte = raw[r, c, size - 1 - plane]
                out[r, plane * cols + c] = byte - before
                before = byte


@njit
def _accumulate_planes(data, raw):
    rows, cols, size = raw.shape
    for r in range(rows):
        byte = 0
        for plane in range(size):
            for c in range(cols):
                byte = (byte + data[r, plane * cols + c]) & 255
                raw[r, c, size - 1 - plane] = byte


def predictor_for(dtype) -> int:
    """TIFF predictor that suits `dtype`: 2 for integers, 3 for floats."""
    return FLOATING_POINT if np.dtype(dtype).kind == "f" else HORIZONTAL


def _unsigned(dtype: np.dtype) -> str:
    return f"u{dtype.itemsize}"


def predict(pixels: np.ndarray, predictor: int) -> np.ndarray:
    """The bytes that get compressed: `pixels` (rows, cols), C-contiguous, after the TIFF predictor.

    Raises
    ------
    ValueError
        Predictor 3 on integers, or an unknown predictor.
    """
    if predictor == NO_PREDICTOR:
        return pixels
    if predictor == HORIZONTAL:
        out = np.empty(pixels.shape, dtype=_unsigned(pixels.dtype))
        _difference(pixels.view(out.dtype), out)
        return out
    _require_floating_point(predictor, pixels.dtype)
    rows, cols = pixels.shape
    size = pixels.dtype.itemsize
    out = np.empty((rows, cols * size), dtype=np.uint8)
    _difference_planes(pixels.view(np.uint8).reshape(rows, cols, size), out)
    return out


def _require_floating_point(predictor: int, dtype: np.dtype) -> None:
    if predictor != FLOATING_POINT or dtype.kind != "f":
        raise ValueError(f"predictor {predictor} does not exist for {dtype}")


def encode_tile(pixels: np.ndarray, predictor: int, level: int) -> bytes:
    """One ZSTD frame, its content size in the header, of a tile.

    Parameters
    ----------
    pixels : ndarray (rows, cols), C-contiguous, little-endian
    predictor : {1, 2, 3}
    level : int
        ZSTD level.
    """
    return compress(predict(pixels, predictor), level)


def compress(data, level: int) -> bytes:
    """One ZSTD frame of `data` (bytes or a C-contiguous array), its content size in the header."""
    compressors = _contexts.__dict__.setdefault("compressors", {})
    if level not in compressors:
        compressors[level] = zstandard.ZstdCompressor(level=level, write_content_size=True)
    return compressors[level].compress(data)


def decompress(data, size: int) -> bytes:
    """The `size` bytes of one ZSTD frame.

    Raises
    ------
    DamagedTileError
        The frame cannot be decoded, holds another number of bytes, or something follows it.
    """
    if "decompressor" not in _contexts.__dict__:
        _contexts.decompressor = zstandard.ZstdDecompressor()
    try:
        declared = zstandard.get_frame_parameters(data).content_size
        # libzstd would allocate what the frame says before it looks at the rest
        if declared not in (size, zstandard.CONTENTSIZE_UNKNOWN):
            raise DamagedTileError(f"its ZSTD frame says {declared} bytes, a tile has {size}")
        out = _contexts.decompressor.decompress(data, max_output_size=size, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise DamagedTileError(f"libzstd cannot decode it ({error})") from error
    if len(out) != size:
        raise DamagedTileError(f"it decodes to {len(out)} bytes, a tile has {size}")
    return out


def decode_tile(data, dtype, shape=(TILE, TILE), predictor: int = NO_PREDICTOR, byteorder: str = "<") -> np.ndarray:
    """Pixels (rows, cols) of one compressed tile, as a writable array in native byte order.

    Parameters
    ----------
    data : bytes-like
        One ZSTD frame, with or without content size.
    dtype : dtype-like
    shape : (rows, cols)
    predictor : {1, 2, 3}
    byteorder : {"<", ">"}
        Of the TIFF file.

    Raises
    ------
    DamagedTileError
        See `decompress`.
    ValueError
        Predictor 3 on integers, or an unknown predictor.
    """
    dtype = np.dtype(dtype)
    rows, cols = shape
    plain = decompress(data, rows * cols * dtype.itemsize)
    if predictor in (NO_PREDICTOR, HORIZONTAL):
        unsigned = np.dtype(_unsigned(dtype))
        pixels = np.frombuffer(plain, dtype=unsigned.newbyteorder(byteorder)).reshape(shape).astype(unsigned)
        if predictor == HORIZONTAL:
            _accumulate(pixels)
        return pixels.view(dtype)
    _require_floating_point(predictor, dtype)
    # the planes begin with the most significant byte whatever the byte order of the file
    raw = np.empty((rows, cols, dtype.itemsize), dtype=np.uint8)
    _accumulate_planes(np.frombuffer(plain, dtype=np.uint8).reshape(rows, -1), raw)
    return raw.reshape(rows, -1).view(dtype)


def packed_mask(valid: np.ndarray) -> np.ndarray:
    """Mask `valid` (rows, cols), 0 invalid, as TIFF's 1-bit samples: uint8 (rows, ceil(cols / 8)).

    The leftmost pixel is the top bit.
    """
    return np.packbits(valid != 0, axis=1)


def decode_mask(data, shape=(TILE, TILE)) -> np.ndarray:
    """Mask uint8 (rows, cols), 255 valid and 0 invalid, of one compressed 1-bit tile.

    Raises
    ------
    DamagedTileError
        See `decompress`.
    """
    rows, cols = shape
    packed = np.frombuffer(decompress(data, rows * -(-cols // 8)), dtype=np.uint8).reshape(rows, -1)
    return np.unpackbits(packed, axis=1, count=cols) * np.uint8(255)


def tile_checksum(data) -> int:
    """xxh3-64 of a tile's compressed bytes."""
    return xxhash.xxh3_64_intdigest(data)


def encode_checksums(checksums: np.ndarray) -> str:
    """Base64 of little-endian uint64, row-major."""
    return base64.b64encode(np.ascontiguousarray(checksums, dtype="<u8").tobytes()).decode("ascii")


def decode_checksums(text: str | None) -> np.ndarray | None:
    """Inverse of `encode_checksums`, flat; None of None."""
    return None if text is None else np.frombuffer(base64.b64decode(text), dtype="<u8")


def pixel_digest_tile(pixels: np.ndarray) -> int:
    """xxh3-64 of a decoded tile's little-endian bytes, padding included; of a mask tile, its packed bits."""
    return xxhash.xxh3_64_intdigest(np.ascontiguousarray(pixels).data)


def pixel_digest(tile_digests: np.ndarray) -> str:
    """Digest of a level: xxh3-128, as hex, over the little-endian `pixel_digest_tile` of its tiles.

    Parameters
    ----------
    tile_digests : ndarray of uint64, any shape
        Row-major; where the level has a mask, all image tiles first, then all mask tiles.
    """
    return xxhash.xxh3_128_hexdigest(np.ascontiguousarray(tile_digests, dtype="<u8").tobytes())

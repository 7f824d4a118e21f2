"""Overviews: 2 x 2 pixels from the top left become one, at the edges as many as exist.

`continuous` is the mean of the valid pixels in float64, summed in the order top left, top right, bottom left,
bottom right; integers are floor(mean + 0.5). The mean never leaves the range of its pixels, and never becomes
nodata: it then moves to the next value above. `classes` is the most frequent valid value, the first to reach the
top count in row-major order. `bits` is the top left pixel.
"""

import numpy as np

from cogmill.kernels import njit

KINDS = ("continuous", "classes", "bits")


@njit
def _mean(pixels, valid, has_valid, nodata, has_nodata, fill, one, integer, out, out_valid):
    rows, cols = pixels.shape
    for i in range(out.shape[0]):
        for j in range(out.shape[1]):
            total, n = 0.0, 0
            low = high = pixels[2 * i, 2 * j]
            for r in range(2 * i, min(2 * i + 2, rows)):
                for c in range(2 * j, min(2 * j + 2, cols)):
                    value = pixels[r, c]
                    if (has_valid and valid[r, c] == 0) or (has_nodata and value == nodata) or value != value:
                        continue
                    if n == 0:
                        low = high = value
                    low = value if value < low else low
                    high = value if value > high else high
                    total += np.float64(value)
                    n += 1
            if has_valid:
                out_valid[i, j] = 255 if n else 0
            if n == 0:
                out[i, j] = fill
                continue
            mean = total / n
            if integer:
                mean = np.floor(mean + 0.5)
            # 64-bit pixels are not exact in float64: the bounds are, and keep the cast below in range
            if mean >= np.float64(high):
                out[i, j] = high
            elif mean <= np.float64(low):
                out[i, j] = low
            elif mean != mean:
                out[i, j] = np.nan  # inf minus inf; the sign of its NaN depends on the processor
            else:
                out[i, j] = mean
            if has_nodata and out[i, j] == nodata:
                # some pixel is above the mean, so that the next value above is in range
                if integer:
                    out[i, j] = nodata + one
                else:
                    out[i, j] = np.nextafter(nodata, high)


@njit
def _mode(pixels, valid, has_valid, nodata, has_nodata, fill, out, out_valid):
    rows, cols = pixels.shape
    for i in range(out.shape[0]):
        for j in range(out.shape[1]):
            best, top = fill, 0
            for r in range(2 * i, min(2 * i + 2, rows)):
                for c in range(2 * j, min(2 * j + 2, cols)):
                    value = pixels[r, c]
                    if (has_valid and valid[r, c] == 0) or (has_nodata and value == nodata) or value != value:
                        continue
                    count = 0
                    for r2 in range(2 * i, r + 1):
                        for c2 in range(2 * j, min(2 * j + 2, cols)):
                            if r2 == r and c2 > c:
                                break
                            if pixels[r2, c2] == value and not (has_valid and valid[r2, c2] == 0):
                                count += 1
                    if count > top:
                        best, top = value, count
            out[i, j] = best
            if has_valid:
                out_valid[i, j] = 255 if top else 0


def reduce2(pixels: np.ndarray, valid: np.ndarray | None, nodata, kind: str) -> tuple[np.ndarray, np.ndarray | None]:
    """Halve a block of pixels that begins at an even row and column.

    Parameters
    ----------
    pixels : ndarray (rows, cols)
    valid : ndarray of uint8 (rows, cols) or None
        The file's mask, 0 invalid.
    nodata : number or None
        Compared in the type of `pixels`; NaN is invalid in any case.
    kind : {"continuous", "classes", "bits"}

    Returns
    -------
    pixels : ndarray (ceil(rows / 2), ceil(cols / 2)) of the same type
        Where nothing is valid: nodata; without nodata NaN of floats, 0 of integers. `bits` copies.
    valid : ndarray of uint8, 255 and 0, or None
        255 where any pixel counts; for `bits` as the top left pixel's.
    """
    if kind == "bits":
        half = np.ascontiguousarray(pixels[::2, ::2])
        return half, None if valid is None else np.where(valid[::2, ::2], 255, 0).astype(np.uint8)
    if kind not in KINDS:
        raise ValueError(f"overview kind {kind!r} is none of {', '.join(KINDS)}")
    cast = pixels.dtype.type
    integer = pixels.dtype.kind in "iu"
    fill = cast(nodata if nodata is not None else 0 if integer else np.nan)
    out = np.empty((-(-pixels.shape[0] // 2), -(-pixels.shape[1] // 2)), dtype=pixels.dtype)
    has_valid = valid is not None
    out_valid = np.empty(out.shape if has_valid else (0, 0), dtype=np.uint8)
    given = np.ascontiguousarray(valid, dtype=np.uint8) if has_valid else np.empty((0, 0), dtype=np.uint8)
    pixels = np.ascontiguousarray(pixels)
    if kind == "classes":
        _mode(pixels, given, has_valid, fill, nodata is not None, fill, out, out_valid)
    else:
        _mean(pixels, given, has_valid, fill, nodata is not None, fill, cast(1), integer, out, out_valid)
    return out, out_valid if has_valid else None

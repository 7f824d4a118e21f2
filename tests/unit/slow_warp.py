"""Resampling pixel by pixel in float64, written from the rules alone: what the kernels are held against.

Nothing here is shared with the package. Invalid pixels are NaN.
"""

import math

import numpy as np

AREA = ("average", "mode", "min", "max", "median")
EDGE = 1e-10


def warp(values, method, x, y):
    """Resample a whole raster.

    Parameters
    ----------
    values : (rows, cols) array, NaN = invalid
    method : str
    x, y : arrays
        Source coordinates of (rows, cols) pixel centres, or of (rows + 1, cols + 1) corners for methods of areas.

    Returns
    -------
    (rows, cols) float64
    """
    values = np.asarray(values, np.float64)
    rows, cols = (n - (method in AREA) for n in x.shape)
    out = np.full((rows, cols), np.nan)
    for r in range(rows):
        for c in range(cols):
            if method in AREA:
                out[r, c] = area(values, method, (x[r, c], x[r + 1, c + 1]), (y[r, c], y[r + 1, c + 1]))
            else:
                out[r, c] = point(values, method, x[r, c], y[r, c])
    return out


def point(values, method, x, y):
    height, width = values.shape
    if not (x >= 0 and y >= 0 and x + EDGE <= width and y + EDGE <= height):
        return math.nan
    centre = values[min(math.floor(y + EDGE), height - 1), min(math.floor(x + EDGE), width - 1)]
    if method == "nearest" or math.isnan(centre):
        return centre
    if method == "lanczos":
        return lanczos(values, x, y)
    if method == "cubic":
        rows, cols, taps = neighbours(values, x, y, 4)
        if len(rows) == len(cols) == 4 and not np.isnan(taps).any():
            return float(keys(y - 0.5 - rows) @ taps @ keys(x - 0.5 - cols))
    rows, cols, taps = neighbours(values, x, y, 2)
    weights = np.outer(1 - np.abs(y - 0.5 - rows), 1 - np.abs(x - 0.5 - cols))
    known = ~np.isnan(taps)
    mean = (weights[known] * taps[known]).sum() / weights[known].sum()
    return float(np.clip(mean, taps[known].min(), taps[known].max()))


def neighbours(values, x, y, size):
    """Rows, columns and values of the pixels of the raster among `size` x `size` around a point."""
    first_row, first_col = math.floor(y - 0.5) - size // 2 + 1, math.floor(x - 0.5) - size // 2 + 1
    rows = np.array([r for r in range(first_row, first_row + size) if 0 <= r < values.shape[0]])
    cols = np.array([c for c in range(first_col, first_col + size) if 0 <= c < values.shape[1]])
    return rows, cols, values[np.ix_(rows, cols)]


def keys(distance):
    """Keys' cubic convolution with a = -0.5."""
    d = np.abs(distance)
    near = 1.5 * d**3 - 2.5 * d**2 + 1
    far = -0.5 * d**3 + 2.5 * d**2 - 4 * d + 2
    return np.where(d <= 1, near, np.where(d < 2, far, 0))


def lanczos_sum(values, x, y):
    """Sum of the weights of valid pixels."""
    rows, cols, taps = neighbours(values, x, y, 6)
    return sinc(y, rows, x, cols)[~np.isnan(taps)].sum()


def sinc(y, rows, x, cols):
    dy, dx = y - 0.5 - rows, x - 0.5 - cols
    return np.outer(np.sinc(dy) * np.sinc(dy / 3), np.sinc(dx) * np.sinc(dx / 3))


def lanczos(values, x, y):
    rows, cols, taps = neighbours(values, x, y, 6)
    weights = sinc(y, rows, x, cols)
    known = ~np.isnan(taps)
    total = weights[known].sum()
    if known.sum() < taps.size // 2 or total < 1e-6:
        return math.nan
    return float((weights[known] * taps[known]).sum() / total)


def area(values, method, xs, ys):
    rows, cols = span(ys, values.shape[0]), span(xs, values.shape[1])
    if not len(rows) or not len(cols):
        return math.nan
    taps = values[rows[0] : rows[-1] + 1, cols[0] : cols[-1] + 1]
    known = ~np.isnan(taps)
    if not known.any():
        return math.nan
    found = taps[known]
    if method == "average":
        weights = np.outer(lengths(ys, rows), lengths(xs, cols))[known]
        if not (weights > 0).any():
            return math.nan
        return float(np.clip((weights * found).sum() / weights.sum(), found.min(), found.max()))
    if method == "mode":
        return first_to_the_top(found)
    if method == "median":
        return float(np.sort(found)[math.ceil(0.5 * len(found) - 1)])
    return float(found.min() if method == "min" else found.max())


def span(ends, size):
    """Pixels that a box touches along one axis."""
    low, high = np.minimum(*ends), np.maximum(*ends)  # NaN where one is
    if not (low >= -2 and high <= size + 2 and high > EDGE and low + EDGE < size):
        return []
    first, last = max(math.floor(low + EDGE), 0), min(math.ceil(high - EDGE), size)
    if first == last < size:
        last += 1
    return list(range(first, last))


def lengths(ends, pixels):
    """Weights of those pixels, of the first and the last one by what the box leaves of them."""
    if len(pixels) == 1:
        return np.ones(1)
    weights = np.ones(len(pixels))
    weights[0] = 1 - (min(ends) - pixels[0])
    weights[-1] = 1 - (pixels[-1] + 1 - max(ends))
    return weights


def first_to_the_top(found):
    counts, best = {}, None
    for value in found.tolist():
        counts[value] = counts.get(value, 0) + 1
        if best is None or counts[value] > counts[best]:
            best = value
    return best

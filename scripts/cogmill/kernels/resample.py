"""Resampling of one plane of values at given source coordinates, with the semantics of gdalwarp.

A plane is a window of a source raster: float32 or float64, NaN = invalid. Coordinates are (x, y) = (column, row) of the
raster in float64, corner origin. Functions of this module fill a line of float64 results; all arithmetic is float64, in
an order that depends on the pixel alone, so results are the same bits for any window, plane and number of threads.

Valid coordinates have x >= 0, x + 1e-10 <= width, and so for y; the centre pixel is floor(x + 1e-10). A result is
invalid where the coordinates or the centre pixel are (area methods: where no pixel of the box is valid).
"""

import math

import numpy as np

from cogmill.kernels import njit

POINT_METHODS = ("nearest", "bilinear", "cubic", "lanczos")
AREA_METHODS = ("average", "mode", "min", "max", "median")
METHODS = POINT_METHODS + AREA_METHODS

# pixels before and after floor(coordinate) that a method may touch; of area methods, of the box's two ends
FOOTPRINT = {"nearest": (0, 1), "bilinear": (1, 1), "cubic": (2, 2), "lanczos": (3, 3)} | dict.fromkeys(
    AREA_METHODS, (0, 1)
)

# gdalwarp's tolerance for coordinates at a pixel's edge
EDGE = 1e-10
# boxes with a corner further outside of the raster are skipped, and those that do not overlap it
MARGIN = 2.0


def source_window(
    method: str, x: np.ndarray, y: np.ndarray, shape: tuple[int, int], affine=(1, 0, 0, 0, 1, 0)
) -> tuple[int, int, int, int]:
    """Window of the source raster that a resampler needs for a window of the target.

    Parameters
    ----------
    method : str
    x, y : (rows, cols) float64
        Coordinates: of pixel centres, for area methods of pixel corners.
    shape : (rows, cols)
        Of the raster.
    affine : (a, b, c, d, e, f)
        Applied to the coordinates.

    Returns
    -------
    row, col, rows, cols : int
        (0, 0, 0, 0) where no coordinates lie in the raster.
    """
    margin = MARGIN if method in AREA_METHODS else EDGE
    table = np.array(affine, np.float64)
    height, width = (int(n) for n in shape)
    found, left, top, right, bottom = _extent(x, y, table, float(height), float(width), margin)
    if not found:
        return 0, 0, 0, 0
    before, after = FOOTPRINT[method]
    col, row = (min(max(0, math.floor(low) - before), n) for low, n in ((left, width), (top, height)))
    end_col, end_row = (max(0, min(n, math.floor(high) + after + 1)) for high, n in ((right, width), (bottom, height)))
    return row, col, max(0, end_row - row), max(0, end_col - col)


@njit
def _extent(xs, ys, affine, height, width, margin):
    found = False
    left, top, right, bottom = np.inf, np.inf, -np.inf, -np.inf
    a, b, c, d, e, f = affine[0], affine[1], affine[2], affine[3], affine[4], affine[5]
    same = is_identity(affine)
    for i in range(xs.shape[0]):
        for j in range(xs.shape[1]):
            x, y = xs[i, j], ys[i, j]
            if not same:
                x, y = (a * x + b * y) + c, (d * x + e * y) + f
            if x >= -margin and y >= -margin and x <= width + margin and y <= height + margin:
                found = True
                left = x if x < left else left
                right = x if x > right else right
                top = y if y < top else top
                bottom = y if y > bottom else bottom
    return found, left, top, right, bottom


@njit
def is_identity(affine):
    return (
        affine[0] == 1.0
        and affine[1] == 0.0
        and affine[2] == 0.0
        and affine[3] == 0.0
        and affine[4] == 1.0
        and affine[5] == 0.0
    )


@njit
def place(affine, xs, ys, out_x, out_y):
    """Coordinates of a line on the plane's raster; those of the identity are copied, so that their bits stay."""
    if is_identity(affine):
        for k in range(xs.size):
            out_x[k] = xs[k]
            out_y[k] = ys[k]
        return
    a, b, c, d, e, f = affine[0], affine[1], affine[2], affine[3], affine[4], affine[5]
    for k in range(xs.size):
        x, y = xs[k], ys[k]
        out_x[k] = (a * x + b * y) + c
        out_y[k] = (d * x + e * y) + f


@njit
def _inside(x, y, height, width):
    """Whether coordinates are valid; NaN is not."""
    return (x >= 0.0) & (y >= 0.0) & (x + EDGE <= width) & (y + EDGE <= height)


@njit
def _centre(x, size):
    """Pixel under a valid coordinate."""
    pixel = np.int64(np.floor(x + EDGE))
    return pixel - 1 if pixel == size else pixel


@njit
def _held(plane, row0, col0, top, left, bottom, right):
    """Whether the plane holds these rows and columns of the raster."""
    return (top >= row0) & (left >= col0) & (bottom <= row0 + plane.shape[0]) & (right <= col0 + plane.shape[1])


# --- methods of points -----------------------------------------------------------------------------------------------
# (out, plane, its first row and column in the raster, the raster's height and width, x, y) -> number of target pixels
# that needed a pixel of the raster which the plane does not hold


@njit
def nearest(out, plane, row0, col0, height, width, xs, ys):
    stray = 0
    for k in range(xs.size):
        x, y = xs[k], ys[k]
        value = np.nan
        if _inside(x, y, height, width):
            row, col = _centre(y, height) - row0, _centre(x, width) - col0
            if (row >= 0) & (col >= 0) & (row < plane.shape[0]) & (col < plane.shape[1]):
                value = np.float64(plane[np.uint64(row), np.uint64(col)])
            else:
                stray += 1
        out[k] = value
    return stray


@njit
def bilinear(out, plane, row0, col0, height, width, xs, ys):
    stray = 0
    rows, cols = plane.shape
    for k in range(xs.size):
        x, y = xs[k], ys[k]
        if not _inside(x, y, height, width):
            out[k] = np.nan
            continue
        floor_x, floor_y = np.floor(x - 0.5), np.floor(y - 0.5)
        col, row = np.int64(floor_x) - col0, np.int64(floor_y) - row0
        if (row >= 0) & (col >= 0) & (row + 1 < rows) & (col + 1 < cols):
            i, j = np.uint64(row), np.uint64(col)
            value = _nested(plane, i, j, (x - 0.5) - floor_x, (y - 0.5) - floor_y)
            if value == value:
                out[k] = value
                continue
        out[k], lost = _valid_of_four(plane, row0, col0, height, width, x, y)
        stray += lost
    return stray


@njit
def _nested(plane, i, j, u, v):
    """Between four pixels, first along the rows; NaN where one is."""
    one = np.uint64(1)
    v00, v01 = np.float64(plane[i, j]), np.float64(plane[i, j + one])
    v10, v11 = np.float64(plane[i + one, j]), np.float64(plane[i + one, j + one])
    above = v00 + (v01 - v00) * u
    below = v10 + (v11 - v10) * u
    value = above + (below - above) * v
    low0, high0 = (v00, v01) if v00 < v01 else (v01, v00)
    low1, high1 = (v10, v11) if v10 < v11 else (v11, v10)
    low = low0 if low0 < low1 else low1
    high = high0 if high0 > high1 else high1
    # comparisons with NaN are false: it stays
    value = low if value < low else value
    return high if value > high else value


@njit
def _valid_of_four(plane, row0, col0, height, width, x, y):
    """Bilinear over those of the four pixels that are valid, by weights made to sum to one; (value, 1 if stray)."""
    col, row = np.int64(np.floor(x - 0.5)), np.int64(np.floor(y - 0.5))
    top, bottom = max(row, 0), min(row + 2, height)
    left, right = max(col, 0), min(col + 2, width)
    if not _held(plane, row0, col0, top, left, bottom, right):
        return np.nan, 1
    centre = np.float64(plane[_centre(y, height) - row0, _centre(x, width) - col0])
    if centre != centre:
        return np.nan, 0
    u, v = (x - 0.5) - np.floor(x - 0.5), (y - 0.5) - np.floor(y - 0.5)
    # differences from the centre: equal pixels give exactly their value
    total, weights, low, high, number = 0.0, 0.0, centre, centre, 0
    for r in range(top, bottom):
        for c in range(left, right):
            value = np.float64(plane[r - row0, c - col0])
            if value == value:
                weight = (u if c > col else 1.0 - u) * (v if r > row else 1.0 - v)
                total += weight * (value - centre)
                weights += weight
                low = value if value < low else low
                high = value if value > high else high
                number += 1
    if number == 4:
        return _nested(plane, np.uint64(row - row0), np.uint64(col - col0), u, v), 0
    value = centre + total / weights
    return min(max(value, low), high), 0


@njit
def cubic(out, plane, row0, col0, height, width, xs, ys):
    stray = 0
    rows, cols = plane.shape
    for k in range(xs.size):
        x, y = xs[k], ys[k]
        if not _inside(x, y, height, width):
            out[k] = np.nan
            continue
        floor_x, floor_y = np.floor(x - 0.5), np.floor(y - 0.5)
        left, top = np.int64(floor_x) - 1, np.int64(floor_y) - 1
        col, row = left - col0, top - row0
        value = np.nan
        if (row >= 0) & (col >= 0) & (row + 3 < rows) & (col + 3 < cols):
            value = _cubic_of_sixteen(plane, np.uint64(row), np.uint64(col), (x - 0.5) - floor_x, (y - 0.5) - floor_y)
        elif (top >= 0) & (left >= 0) & (top + 3 < height) & (left + 3 < width):
            stray += 1
            out[k] = np.nan
            continue
        if value != value:
            value, lost = _valid_of_four(plane, row0, col0, height, width, x, y)
            stray += lost
        out[k] = value
    return stray


@njit
def _cubic_of_sixteen(plane, i, j, u, v):
    """Cubic convolution (a = -0.5); NaN where a pixel is."""
    x0, x1, x2, x3 = _cubic_weights(u)
    y0, y1, y2, y3 = _cubic_weights(v)
    one, two, three = np.uint64(1), np.uint64(2), np.uint64(3)
    # differences from one pixel: equal pixels give exactly their value
    base = np.float64(plane[i + one, j + one])
    r0 = _cubic_row(plane, i, j, base, x0, x1, x2, x3)
    r1 = _cubic_row(plane, i + one, j, base, x0, x1, x2, x3)
    r2 = _cubic_row(plane, i + two, j, base, x0, x1, x2, x3)
    r3 = _cubic_row(plane, i + three, j, base, x0, x1, x2, x3)
    return base + ((y0 * r0 + y1 * r1) + (y2 * r2 + y3 * r3))


@njit
def _cubic_row(plane, i, j, base, w0, w1, w2, w3):
    one, two, three = np.uint64(1), np.uint64(2), np.uint64(3)
    v0, v1 = np.float64(plane[i, j]) - base, np.float64(plane[i, j + one]) - base
    v2, v3 = np.float64(plane[i, j + two]) - base, np.float64(plane[i, j + three]) - base
    return (w0 * v0 + w1 * v1) + (w2 * v2 + w3 * v3)


@njit
def _cubic_weights(u):
    """Of the pixels at -1, 0, 1, 2 for a fraction u."""
    w0 = ((-0.5 * u + 1.0) * u - 0.5) * u
    w1 = (1.5 * u - 2.5) * u * u + 1.0
    w2 = ((-1.5 * u + 2.0) * u + 0.5) * u
    w3 = (0.5 * u - 0.5) * u * u
    return w0, w1, w2, w3


@njit
def lanczos(out, plane, row0, col0, height, width, xs, ys):
    stray = 0
    weights_x, weights_y = np.empty(6), np.empty(6)
    for k in range(xs.size):
        x, y = xs[k], ys[k]
        out[k] = np.nan
        if not _inside(x, y, height, width):
            continue
        col, row = np.int64(np.floor(x - 0.5)) - 2, np.int64(np.floor(y - 0.5)) - 2
        top, bottom, left, right = max(row, 0), min(row + 6, height), max(col, 0), min(col + 6, width)
        if not _held(plane, row0, col0, top, left, bottom, right):
            stray += 1
            continue
        centre = np.float64(plane[_centre(y, height) - row0, _centre(x, width) - col0])
        if centre != centre:
            continue
        _lanczos_weights((x - 0.5) - np.floor(x - 0.5), weights_x)
        _lanczos_weights((y - 0.5) - np.floor(y - 0.5), weights_y)
        if bottom - top == 6 and right - left == 6:
            value = _lanczos_of_all(plane, np.uint64(top - row0), np.uint64(left - col0), centre, weights_x, weights_y)
            if value == value:
                out[k] = value
                continue
        total, weights, number = 0.0, 0.0, 0
        for r in range(top, bottom):
            row_total, row_weights = 0.0, 0.0
            for c in range(left, right):
                value = np.float64(plane[r - row0, c - col0])
                if value == value:
                    weight = weights_x[c - col]
                    row_total += weight * (value - centre)
                    row_weights += weight
                    number += 1
            total += weights_y[r - row] * row_total
            weights += weights_y[r - row] * row_weights
        if number >= (bottom - top) * (right - left) // 2 and weights >= 1e-6:
            out[k] = centre + total / weights
    return stray


@njit
def _lanczos_of_all(plane, i, j, centre, x, y):
    """Of 36 pixels; NaN where one is."""
    total = 0.0
    for r in range(6):
        line = plane[i + np.uint64(r)]
        v0, v1 = np.float64(line[j]) - centre, np.float64(line[j + np.uint64(1)]) - centre
        v2, v3 = np.float64(line[j + np.uint64(2)]) - centre, np.float64(line[j + np.uint64(3)]) - centre
        v4, v5 = np.float64(line[j + np.uint64(4)]) - centre, np.float64(line[j + np.uint64(5)]) - centre
        total += y[r] * (((x[0] * v0 + x[1] * v1) + (x[2] * v2 + x[3] * v3)) + (x[4] * v4 + x[5] * v5))
    weights_x = ((x[0] + x[1]) + (x[2] + x[3])) + (x[4] + x[5])
    weights_y = ((y[0] + y[1]) + (y[2] + y[3])) + (y[4] + y[5])
    return centre + total / (weights_x * weights_y)


@njit
def _sine(x):
    """sin(pi / 3 * x) for x in 0..1 (up to 1.5), by a polynomial: a library's sine differs between devices."""
    t = 1.0471975511965976 * x
    s = t * t
    p = 1.0 / 51090942171709440000.0
    p = p * s - 1.0 / 121645100408832000.0
    p = p * s + 1.0 / 355687428096000.0
    p = p * s - 1.0 / 1307674368000.0
    p = p * s + 1.0 / 6227020800.0
    p = p * s - 1.0 / 39916800.0
    p = p * s + 1.0 / 362880.0
    p = p * s - 1.0 / 5040.0
    p = p * s + 1.0 / 120.0
    p = p * s - 1.0 / 6.0
    return t + t * (s * p)


@njit
def _lanczos_weights(u, weights):
    """Of the pixels at -2 .. 3 for a fraction u: sinc(u - i) * sinc((u - i) / 3).

    Addition theorems leave three sines for six pixels, and no difference of nearly equal numbers.
    """
    weights[:] = 0.0
    w = 1.0 - u
    if u <= 0.0:
        weights[2] = 1.0
        return
    if w <= 0.0:
        weights[3] = 1.0
        return
    scale = 0.30396355092701331  # 3 / pi**2
    scale *= _sine(3.0 * (u if u < 0.5 else w))
    s, t = _sine(u), _sine(w)
    weights[0] = scale * t / ((u + 2.0) * (u + 2.0))
    weights[1] = -scale * (s + t) / ((u + 1.0) * (u + 1.0))
    weights[2] = scale * s / (u * u)
    weights[3] = scale * t / (w * w)
    weights[4] = -scale * (s + t) / ((w + 1.0) * (w + 1.0))
    weights[5] = scale * s / ((w + 2.0) * (w + 2.0))


# --- methods of areas ------------------------------------------------------------------------------------------------
# as above, with the coordinates of two corners of each target pixel, the top left and the bottom right one


@njit
def _box(x0, x1, size):
    """First pixel, one after the last, and the sorted ends of a box along one axis; no pixel where it is skipped."""
    low, high = (x0, x1) if x0 <= x1 else (x1, x0)
    if not ((low >= -MARGIN) & (high <= size + MARGIN) & (high > EDGE) & (low + EDGE < size)):
        return 0, 0, low, high
    first = max(np.int64(np.floor(low + EDGE)), 0)
    last = min(np.int64(np.ceil(high - EDGE)), size)
    if first == last and last < size:
        last += 1
    return first, last, low, high


@njit
def _weight(i, first, last, low, high):
    """Length of pixel i within a box; gdalwarp does not clip the box to the raster."""
    if i == first:
        return 1.0 if first + 1 == last else 1.0 - (low - first)
    return 1.0 - (last - high) if i + 1 == last else 1.0


@njit
def average(out, plane, row0, col0, height, width, xs, ys, xs1, ys1):
    stray = 0
    for k in range(xs.size):
        out[k] = np.nan
        left, right, x_low, x_high = _box(xs[k], xs1[k], width)
        top, bottom, y_low, y_high = _box(ys[k], ys1[k], height)
        if left >= right or top >= bottom:
            continue
        if not _held(plane, row0, col0, top, left, bottom, right):
            stray += 1
            continue
        total, mean, low, high = 0.0, 0.0, np.inf, -np.inf
        for r in range(top, bottom):
            weight_y = _weight(r, top, bottom, y_low, y_high)
            for c in range(left, right):
                value = np.float64(plane[r - row0, c - col0])
                weight = weight_y * _weight(c, left, right, x_low, x_high)
                if value == value and weight > 0.0:
                    total += weight
                    # the first one's quotient is 1: equal pixels give exactly their value
                    mean += (weight / total) * (value - mean)
                    low = value if value < low else low
                    high = value if value > high else high
        if total > 0.0:
            out[k] = min(max(mean, low), high)
    return stray


@njit
def minimum(out, plane, row0, col0, height, width, xs, ys, xs1, ys1):
    return _extreme(out, plane, row0, col0, height, width, xs, ys, xs1, ys1, 1.0)


@njit
def maximum(out, plane, row0, col0, height, width, xs, ys, xs1, ys1):
    return _extreme(out, plane, row0, col0, height, width, xs, ys, xs1, ys1, -1.0)


@njit
def _extreme(out, plane, row0, col0, height, width, xs, ys, xs1, ys1, sign):
    stray = 0
    for k in range(xs.size):
        out[k] = np.nan
        left, right, _, _ = _box(xs[k], xs1[k], width)
        top, bottom, _, _ = _box(ys[k], ys1[k], height)
        if left >= right or top >= bottom:
            continue
        if not _held(plane, row0, col0, top, left, bottom, right):
            stray += 1
            continue
        best = np.inf
        for r in range(top, bottom):
            for c in range(left, right):
                value = sign * np.float64(plane[r - row0, c - col0])
                best = value if value < best else best
        if best < np.inf:
            out[k] = sign * best
    return stray


@njit
def median(out, plane, row0, col0, height, width, xs, ys, xs1, ys1):
    """The lower one of an even number of pixels."""
    stray = 0
    values = np.empty(64)
    for k in range(xs.size):
        out[k] = np.nan
        left, right, _, _ = _box(xs[k], xs1[k], width)
        top, bottom, _, _ = _box(ys[k], ys1[k], height)
        if left >= right or top >= bottom:
            continue
        if not _held(plane, row0, col0, top, left, bottom, right):
            stray += 1
            continue
        if (bottom - top) * (right - left) > values.size:
            values = np.empty((bottom - top) * (right - left))
        number = _gathered(plane, top - row0, left - col0, bottom - row0, right - col0, values)
        if number:
            out[k] = _selected(values, number, (number - 1) // 2)
    return stray


@njit
def _gathered(plane, top, left, bottom, right, values):
    """Valid pixels of a box in row-major order; how many there are."""
    number = 0
    for r in range(top, bottom):
        for c in range(left, right):
            value = np.float64(plane[r, c])
            if value == value:
                values[number] = value
                number += 1
    return number


@njit
def _selected(values, number, wanted):
    """The value at `wanted` if the first `number` were sorted (Hoare's selection); reorders them."""
    low, high = 0, number - 1
    while low < high:
        pivot = values[(low + high) // 2]
        i, j = low, high
        while i <= j:
            while values[i] < pivot:
                i += 1
            while values[j] > pivot:
                j -= 1
            if i <= j:
                values[i], values[j] = values[j], values[i]
                i += 1
                j -= 1
        if wanted <= j:
            high = j
        elif wanted >= i:
            low = i
        else:
            break
    return values[wanted]


@njit
def mode(out, plane, row0, col0, height, width, xs, ys, xs1, ys1):
    """The most frequent value, the first to reach the top count in row-major order."""
    stray = 0
    values, counts = np.empty(64), np.empty(64, np.int64)
    for k in range(xs.size):
        out[k] = np.nan
        left, right, _, _ = _box(xs[k], xs1[k], width)
        top, bottom, _, _ = _box(ys[k], ys1[k], height)
        if left >= right or top >= bottom:
            continue
        if not _held(plane, row0, col0, top, left, bottom, right):
            stray += 1
            continue
        slots = 8
        while slots < 2 * (bottom - top) * (right - left):
            slots *= 2
        if slots > values.size:
            values, counts = np.empty(slots), np.empty(slots, np.int64)
        counts[:slots] = 0
        out[k] = _most_frequent(plane, top - row0, left - col0, bottom - row0, right - col0, values, counts, slots)
    return stray


@njit
def _most_frequent(plane, top, left, bottom, right, values, counts, slots):
    """Counts in a hash table with open addressing, so that a large box costs no more than its pixels."""
    best, most = np.nan, 0
    key = np.empty(1)
    bits = key.view(np.uint64)
    for r in range(top, bottom):
        for c in range(left, right):
            value = np.float64(plane[r, c])
            if value != value:
                continue
            key[0] = value + 0.0  # -0.0 and 0.0 are one value
            slot = np.int64((bits[0] * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(33)) & (slots - 1)
            while counts[slot] and values[slot] != value:
                slot = (slot + 1) & (slots - 1)
            if not counts[slot]:
                values[slot] = value
            counts[slot] += 1
            if counts[slot] > most:
                best, most = values[slot], counts[slot]
    return best


FUNCTIONS = {
    "nearest": nearest,
    "bilinear": bilinear,
    "cubic": cubic,
    "lanczos": lanczos,
    "average": average,
    "mode": mode,
    "min": minimum,
    "max": maximum,
    "median": median,
}

"""Source coordinates of the pixels of a target window.

Coordinates are (x, y) = (column, row) in float64, corner origin: pixel (c, r) has its centre at (c + 0.5, r + 0.5).
Every value depends on its own pixel alone, so the bits are the same for any window.
"""

import numpy as np

from cogmill.kernels import njit


def interpolate_nodes(
    nodes_x: np.ndarray, nodes_y: np.ndarray, step: int, window: tuple[int, int, int, int], corners: bool = False
) -> tuple[np.ndarray, np.ndarray]:
    """Source coordinates from a control grid.

    Parameters
    ----------
    nodes_x, nodes_y : (node rows, node cols) float64
        Source column and row of node (i, j), which is the centre of target pixel (i * step, j * step).
    step : int
        Pixels from node to node.
    window : (row, col, rows, cols)
        Of the target.
    corners : bool
        Of the pixels' corners, from the window's top left one to its bottom right one, not of their centres.

    Returns
    -------
    x, y : (rows, cols) float64, with corners (rows + 1, cols + 1)
        NaN where a node of the cell is NaN.

    Raises
    ------
    ValueError
        The nodes do not reach to the window's end.

    Notes
    -----
    In cell (i, j), at the fractions u and v of it: left = n00 + (n10 - n00) * v, right = n01 + (n11 - n01) * v,
    left + (right - left) * u. A corner left of (above) the first node belongs to the first cell.
    """
    row, col, rows, cols = (int(number) for number in window)
    rows, cols, shift = rows + corners, cols + corners, 0.5 if corners else 0.0
    nodes_x, nodes_y = (np.ascontiguousarray(nodes, np.float64) for nodes in (nodes_x, nodes_y))
    x, y = np.empty((rows, cols)), np.empty((rows, cols))
    if not x.size:
        return x, y
    wanted = tuple(max(0, int((last - shift) // step)) + 2 for last in (row + rows - 1, col + cols - 1))
    enough = nodes_x.shape[0] >= wanted[0] and nodes_x.shape[1] >= wanted[1] and min(row, col) >= 0
    if nodes_x.shape != nodes_y.shape or not enough:
        raise ValueError(
            f"window {window} needs at least {wanted} nodes at a step of {step}; "
            f"there are {nodes_x.shape} of x and {nodes_y.shape} of y"
        )
    _interpolate(nodes_x, nodes_y, step, row, col, shift, x, y)
    return x, y


def affine_coordinates(
    affine: tuple[float, ...], window: tuple[int, int, int, int], corners: bool = False
) -> tuple[np.ndarray, np.ndarray]:
    """Source coordinates by x' = (a*x + b*y) + c, y' = (d*x + e*y) + f.

    Parameters
    ----------
    affine : (a, b, c, d, e, f)
    window : (row, col, rows, cols)
        Of the target.
    corners : bool
        Of the pixels' corners, from the window's top left one to its bottom right one, not of their centres.

    Returns
    -------
    x, y : (rows, cols) float64, with corners (rows + 1, cols + 1)
    """
    row, col, rows, cols = (int(number) for number in window)
    x, y = np.empty((rows + corners, cols + corners)), np.empty((rows + corners, cols + corners))
    _affine(np.array(affine, np.float64), row, col, 0.0 if corners else 0.5, x, y)
    return x, y


@njit
def _interpolate(nodes_x, nodes_y, step, first_row, first_col, shift, x, y):
    rows, cols = x.shape
    for r in range(rows):
        place = first_row + r - shift
        i = max(0, int(np.floor(place / step)))
        v = (place - i * step) / step
        c = 0
        while c < cols:
            # all columns of one cell: its ends are computed once, and the loop becomes vector instructions
            j = max(0, int(np.floor((first_col + c - shift) / step)))
            end = min(cols, int((j + 1) * step + 2 * shift) - first_col)
            left_x = nodes_x[i, j] + (nodes_x[i + 1, j] - nodes_x[i, j]) * v
            left_y = nodes_y[i, j] + (nodes_y[i + 1, j] - nodes_y[i, j]) * v
            right_x = nodes_x[i, j + 1] + (nodes_x[i + 1, j + 1] - nodes_x[i, j + 1]) * v
            right_y = nodes_y[i, j + 1] + (nodes_y[i + 1, j + 1] - nodes_y[i, j + 1]) * v
            wide_x, wide_y = right_x - left_x, right_y - left_y
            start = first_col - shift - j * step
            for k in range(c, end):
                u = (start + k) / step
                x[r, k] = left_x + wide_x * u
                y[r, k] = left_y + wide_y * u
            c = end


@njit
def _affine(affine, first_row, first_col, shift, x, y):
    a, b, c, d, e, f = affine[0], affine[1], affine[2], affine[3], affine[4], affine[5]
    for r in range(x.shape[0]):
        row = first_row + r + shift
        for k in range(x.shape[1]):
            col = first_col + k + shift
            x[r, k] = (a * col + b * row) + c
            y[r, k] = (d * col + e * row) + f

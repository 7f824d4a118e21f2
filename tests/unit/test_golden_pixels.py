"""Pixels that must not change unnoticed: a small input for each method, and the bits that come out of it.

Resume compares keys: when code changes pixels, the products made before must be made again, and are when the version of
their phase is raised. `python tests/unit/test_golden_pixels.py` prints the table of bits anew.
"""

import numpy as np
import pytest

from cogmill.indices import parse_formula
from cogmill.kernels.coords import affine_coordinates, interpolate_nodes
from cogmill.kernels.cpu import BandInput, Kernel, Output, PlaneInput, WarpKernel, tile_stats
from cogmill.kernels.resample import METHODS as RESAMPLING
from cogmill.masks import MaskRule, clear

NDVI = "(nir - red) / (nir + red)"
RED = np.array([[0, 1, 300, 1234, 5000, 9999, 40000, 65535]])
NIR = np.array([[2500, 1, 300, 4321, 0, 65535, 1000, 65534]])
VALID = np.uint8([[255, 255, 0, 255, 255, 255, 255, 255]])
CLEAR = np.uint8([[1, 1, 1, 1, 1, 1, 0, 1]])
QUALITY = np.array([[0, 1, 3, 8, 9, 21824, 22280, 65535]])
REFLECTANCE = (1e-4, -0.1)


def hexadecimal(array):
    return array.astype(array.dtype.newbyteorder("<")).tobytes().hex(" ", array.dtype.itemsize)


def product(formula=NDVI, packing=("float32",), dtype="uint16", nodata=None, radiometry=(1.0, 0.0), masked=False):
    inputs = tuple(BandInput(name, dtype, nodata, *radiometry) for name in ("red", "nir"))
    kernel = Kernel(inputs, (Output("p", parse_formula(formula), *packing),), threads=1)
    out = np.empty(RED.shape, packing[0])
    valid, fit = ([VALID, None], CLEAR) if masked else ([None, None], None)
    counts = kernel([RED.astype(dtype), NIR.astype(dtype)], valid, fit, [out])
    return f"{hexadecimal(out)} | {' '.join(map(str, counts[0]))}"


def statistics(dtype, nodata):
    tile = np.arange(-40, 40).reshape(8, 10).astype(dtype) * np.array(0.3 if dtype == "float32" else 3, dtype)
    n, *others = tile_stats(tile, nodata)
    return f"{n} {hexadecimal(np.array(others))}"


def fitness(dtype, **rule):
    return hexadecimal(clear(QUALITY.astype(dtype), MaskRule("quality", **rule), nodata=1))


def warped(method, dtype="float32", packing=("float32",)):
    """A plane with a hole and an edge, turned a little and at 1.3 source pixels a target pixel."""
    plane = np.sqrt(np.arange(20 * 24, dtype=dtype)).reshape(20, 24) * np.array(41, dtype)
    plane[5, 8:10] = plane[7, 20] = np.nan
    kernel = WarpKernel(
        (PlaneInput("red", dtype, method, plane.shape),), (Output("p", parse_formula("red"), *packing),), threads=1
    )
    turned, window = (1.3, 0.1, 2.0, -0.12, 1.25, 3.7), (0, 0, 3, 16)
    out = np.empty(window[2:], packing[0])
    centres, corners = (affine_coordinates(turned, window, c) for c in (False, True))
    counts = kernel([plane], [(0, 0)], [(1, 0, 0, 0, 1, 0)], centres, corners, [out])
    return f"{hexadecimal(out[:, ::6])} | {' '.join(map(str, counts[0]))}"


def coordinates(corners):
    """Between the nodes of a control grid of step 8."""
    i, j = np.indices((4, 5)) * 8.0
    x, y = interpolate_nodes(1.01 * j + 0.03 * i + 1e-3 * i * j, i - 0.02 * j + 2e-4 * j * j, 8, (9, 5, 3, 14), corners)
    return f"{hexadecimal(x[1, ::9])} {hexadecimal(y[:2, 7])}"


METHODS = {
    "ndvi": lambda: product(),
    "ndvi of reflectance": lambda: product(radiometry=REFLECTANCE, nodata=0),
    "ndvi of uint8": lambda: product(dtype="uint8"),
    "ndvi of int16": lambda: product(dtype="int16", nodata=-1),
    "ndvi of int64": lambda: product(dtype="int64", radiometry=(2.75e-5, -0.2)),
    "ndvi of float32": lambda: product(dtype="float32", nodata=65535.0),
    "ndvi of float64": lambda: product(dtype="float64", radiometry=REFLECTANCE),
    "ndvi under masks": lambda: product(masked=True),
    "order of operations": lambda: product("-nir + red * 0.1 - (nir - red) / 3 + 1e-3", radiometry=REFLECTANCE),
    "integer powers": lambda: product("nir ** 2 - red ** 3 + nir ** -5", radiometry=REFLECTANCE),
    "square root": lambda: product("nir ** 0.5 - red ** 0.5"),
    "other powers": lambda: product("nir ** 1.7 / red ** (1 / 3)"),
    "packed int8": lambda: product(packing=("int8", 0.01, 0.0, -128)),
    "packed uint8": lambda: product(packing=("uint8", 0.01, -1.0, 255)),
    "packed int16": lambda: product(packing=("int16", 1e-4, 0.0, -32768), radiometry=REFLECTANCE, nodata=0),
    "packed uint16": lambda: product(packing=("uint16", 1e-4, -1.0, 0), masked=True),
    "packed int32": lambda: product("nir * red", ("int32", 1.0, 0.0, -(2**31))),
    "packed uint32": lambda: product("nir * red", ("uint32", 0.5, 0.0, 1)),
    "statistics of float32": lambda: statistics("float32", np.nan),
    "statistics of int16": lambda: statistics("int16", 9),
    "classes": lambda: fitness("uint8", classes=(3, 8)),
    "bits": lambda: fitness("uint16", bits=(3, 4)),
    **{f"{method} warp": lambda method=method: warped(method) for method in RESAMPLING},
    "warp of float64": lambda: warped("cubic", "float64"),
    "packed warp": lambda: warped("bilinear", packing=("uint16", 0.25, 0.0, 0)),
    "nodes": lambda: coordinates(False),
    "nodes of corners": lambda: coordinates(True),
}

GOLDEN = {
    "ndvi": "0000803f 00000000 00000000 60430e3f 000080bf 05393c3f 1f8373bf c00000b7 | 8 0 0 0",
    "ndvi of reflectance": "0000c07f 00000080 00000080 794c5e3f 0000c07f 9257413f 000080bf 098b01b7 | 6 2 0 0",
    "ndvi of uint8": "0000803f 00000000 00000000 cb3d0d3d 000080bf 398e633f 1c4c113f 22c100bb | 8 0 0 0",
    "ndvi of int16": "0000803f 00000000 00000000 60430e3f 000080bf 0000c07f 046f8abf 0000c07f | 6 2 0 0",
    "ndvi of int64": "408754be 00000080 00000080 6ecdafbe 6218063f e61c693f 77b3bcbf 472d10b7 | 8 0 0 0",
    "ndvi of float32": "0000803f 00000000 00000000 60430e3f 000080bf 0000c07f 1f8373bf 0000c07f | 6 2 0 0",
    "ndvi of float64": "ffff9f40 00000080 00000080 794c5e3f 5555d5bf 9257413f 000080bf 098b01b7 | 8 0 0 0",
    "ndvi under masks": "0000803f 00000000 0000c07f 60430e3f 000080bf 05393c3f 0000c07f c00000b7 | 6 2 0 0",
    "order of operations": "3b2678be 062fba3d 6f12833d 8b02ddbe 7c869d3e 5a6b03c1 b172d83f 15d3b9c0 | 8 0 0 0",
    "integer powers": "fdc24d46 c04ac4c7 e34211c9 f5a77743 0550c3c7 0cad2342 0000c07f 6f2063c3 | 7 1 0 1",
    "square root": "00004842 00000000 00000000 0ad9f441 de6b8dc2 c8001c43 926028c3 000000bb | 8 0 0 0",
    "other powers": "0000c07f 0000803f 76cd1745 eaf50948 00000000 4264da4a f0116645 df63694a | 7 1 0 1",
    "packed int8": "64 00 00 38 9c 4a a1 00 | 8 0 0 0",
    "packed uint8": "c8 64 64 9c 00 ae 05 64 | 8 0 0 0",
    "packed int16": "0080 0000 0000 ec21 0080 801d f0d8 0000 | 6 2 0 0",
    "packed uint16": "204e 1027 0000 c53c 0100 c843 0000 1027 | 6 2 1 0",
    "packed int32": "00000000 01000000 905f0100 925c5100 00000000 00d90e27 005a6202 ffffff7f | 8 0 1 0",
    "packed uint32": "00000000 02000000 20bf0200 24b9a200 00000000 00b21d4e 00b4c404 ffffffff | 8 0 1 0",
    "statistics of float32": "80 00000000000028c0 0000008066662740 00000000000028c0",
    "statistics of int16": "79 0000000000005ec0 0000000000405d40 00000000002060c0",
    "classes": "01 00 00 00 01 01 00 01",
    "bits": "01 00 01 00 00 01 00 00",
    "nearest warp": "8df0ca43 aaa2b943 f48aa643 0d6ee243 780fd343 4ee1da43 d3b3f743 f865fe43 0bd2f043 | 47 1 0 0",
    "bilinear warp": "84e7c443 8fc7ba43 8961af43 c506e343 a0d8d943 a268d043 8039fd43 222bf543 1dfbec43 | 47 1 0 0",
    "cubic warp": "e937c543 8fc7ba43 9fefaf43 090be343 a0d8d943 18c4d043 3461fd43 222bf543 191fed43 | 47 1 0 0",
    "lanczos warp": "74bfc543 d5a2ba43 873daf43 41f7e243 04e3d943 def6d043 d6f5fc43 78e1f443 918bed43 | 47 1 0 0",
    "average warp": "c82fc443 4c96bb43 4fd7af43 193ae343 0916da43 7c27d043 f0c6fd43 9822f543 fc28ec43 | 48 0 0 0",
    "mode warp": "0159b043 88c59a43 bb46a543 8df0ca43 0010d243 8865c143 d3b3f743 68bce943 02ebd943 | 48 0 0 0",
    "min warp": "0159b043 88c59a43 bb46a543 8df0ca43 0010d243 8865c143 d3b3f743 68bce943 02ebd943 | 48 0 0 0",
    "max warp": "f0f8cb43 bb0dd443 e67ac243 9e8cf843 1ba2ea43 88d6db43 40090644 1339ff43 02b1f143 | 48 0 0 0",
    "median warp": "0489b143 aaa2b943 f48aa643 0d6ee243 bb0dd443 bb8ec343 9e8cf843 1ba2ea43 88d6db43 | 48 0 0 0",
    "warp of float64": "e837c543 8fc7ba43 9fefaf43 0a0be343 a0d8d943 18c4d043 3561fd43 212bf543 191fed43 | 47 1 0 0",
    "packed warp": "2706 d605 7b05 1807 cf06 8306 ea07 a907 6807 | 47 1 0 0",
    "nodes": "9999999999991540 285c8fc2f5282d40 2fdd240681952140 2fdd240681952340",
    "nodes of corners": "05560e2db27d1340 62105839b4182c40 61c3d32b65992040 61c3d32b65992240",
}


@pytest.mark.parametrize("method", METHODS)
def test_golden_pixels(method):
    found = METHODS[method]()
    assert found == GOLDEN[method], (
        f"{method}: the pixels have changed. If that is meant, raise PHASE_VERSION['compute'] in ledger.py, so that "
        "products made before are made again, and put the new bits here; if not, find out what changed them."
    )


def test_every_method_has_its_bits():
    assert list(GOLDEN) == list(METHODS)


if __name__ == "__main__":
    for name, method in METHODS.items():
        print(f'    "{name}": "{method()}",')  # noqa: T201

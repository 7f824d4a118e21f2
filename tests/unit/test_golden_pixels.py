"""Pixels that must not change unnoticed: a small input for each method, and the bits that come out of it.

Resume compares keys: when code changes pixels, the products made before must be made again, and are when the version of
their phase is raised. `python tests/unit/test_golden_pixels.py` prints the table of bits anew.
"""

import numpy as np
import pytest

from cogmill.indices import parse_formula
from cogmill.kernels.cpu import BandInput, Kernel, Output, tile_stats
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

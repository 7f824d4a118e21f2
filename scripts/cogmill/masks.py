"""Which pixels a quality band calls unfit: by class (Sentinel-2 SCL) or by bit (Landsat QA_PIXEL)."""

import math
from dataclasses import dataclass

from cogmill.errors import ConfigError, SceneError


@dataclass(frozen=True)
class MaskRule:
    """What makes a pixel unfit, in one quality band of the scene's sensor.

    Parameters
    ----------
    band : str
        Role of the band, such as `scl` or `qa_pixel`.
    classes : tuple of int
        Values that are unfit.
    bits : tuple of int
        Bits (0 = lowest) that are unfit when set.
    """

    band: str
    classes: tuple[int, ...] = ()
    bits: tuple[int, ...] = ()

    def __post_init__(self):
        if not self.classes and not self.bits:
            raise ConfigError(f"key 'masks.{self.band}': give classes or bits; without them it masks nothing")
        for key, values in (("classes", self.classes), ("bits", self.bits)):
            wrong = [v for v in values if isinstance(v, bool) or not isinstance(v, int)]
            wrong += [v for v in values if key == "bits" and v not in wrong and not 0 <= v <= 63]
            if wrong:
                wanted = "whole numbers" if key == "classes" else "whole numbers from 0 to 63"
                raise ConfigError(f"key 'masks.{self.band}.{key}': {wrong[0]!r} found, {wanted} wanted")


def nodata_in(value, dtype):
    """Number `value` as a pixel of `dtype` would hold it, None where no pixel can.

    Parameters
    ----------
    value : int or float
        As a file's tag or the sheet says it; NaN and infinity too.
    dtype : str or numpy.dtype
        An integer or float type.

    Returns
    -------
    int, float or None
        None for a fraction or a number out of an integer type's range (-9999 on uint16), and for a number too large
        for a float type. A float is rounded to the type: -9999.1 written as text is the float32 nearest to it.

    >>> nodata_in(-9999.0, "uint8"), nodata_in(255.0, "uint8"), nodata_in(float("nan"), "float32")
    (None, 255, nan)
    """
    import numpy as np

    dtype = np.dtype(dtype)
    if dtype.kind == "f":
        try:
            number = float(value)
        except OverflowError:  # whole numbers have no end
            return None
        with np.errstate(over="ignore"):
            held = float(dtype.type(number))
        return None if math.isinf(held) and not math.isinf(number) else held
    # int() keeps 64 bits exact; float() would not
    if not -math.inf < value < math.inf or value != int(value):
        return None
    limits = np.iinfo(dtype)
    return int(value) if limits.min <= int(value) <= limits.max else None


def native_nodata(nodata, dtype):
    """Nodata as a NumPy scalar of `dtype` to compare pixels with; see `nodata_in`.

    None for no nodata, and for NaN and infinity, which are never valid in any case.
    """
    import numpy as np

    held = None if nodata is None else nodata_in(nodata, dtype)
    return None if held is None or not math.isfinite(held) else np.dtype(dtype).type(held)


def clear(pixels, rule: MaskRule, nodata=None):
    """Pixels that a quality band calls fit.

    Parameters
    ----------
    pixels : (rows, cols) array of an integer type; of a float type where the rule has no bits
    rule : MaskRule
    nodata : int, float or None
        Nodata of the quality band: what it cannot judge is not fit.

    Returns
    -------
    (rows, cols) uint8
        1 fit, 0 where the class is listed, any listed bit is set, or the value is nodata or NaN.

    Raises
    ------
    SceneError
        `mask_rule`: bits of a float band, or a bit that the band's type does not have.
    """
    import numpy as np

    dtype = pixels.dtype
    if dtype.kind not in "uif":
        raise SceneError(f"mask band '{rule.band}' has dtype {dtype}; integers are wanted", "mask_rule")
    if rule.bits:
        _check_bits(rule, dtype)
    if dtype.kind != "f" and dtype.itemsize <= 2:
        # a table of all 256 or 65,536 values is one look-up a pixel, whatever the number of classes
        unsigned = np.dtype(f"u{dtype.itemsize}")
        table = np.arange(2 ** (8 * dtype.itemsize), dtype=unsigned).view(dtype)
        return _fit(table, rule, nodata)[np.ascontiguousarray(pixels).view(unsigned)]
    return _fit(pixels, rule, nodata)


def _check_bits(rule: MaskRule, dtype) -> None:
    if dtype.kind == "f":
        raise SceneError(
            f"mask band '{rule.band}' has dtype {dtype} and no bits; change key 'masks.{rule.band}.bits'",
            "mask_rule",
        )
    if max(rule.bits) >= 8 * dtype.itemsize:
        raise SceneError(
            f"mask band '{rule.band}' has dtype {dtype}, which has no bit {max(rule.bits)}; "
            f"change key 'masks.{rule.band}.bits'",
            "mask_rule",
        )


def _fit(values, rule: MaskRule, nodata):
    import numpy as np

    unfit = np.zeros(values.shape, bool)
    for number in (*rule.classes, nodata):
        native = native_nodata(number, values.dtype)
        if native is not None:
            unfit |= values == native
    if rule.bits:
        unsigned = np.dtype(f"u{values.dtype.itemsize}")
        wanted = unsigned.type(sum(1 << bit for bit in set(rule.bits)))
        unfit |= (np.ascontiguousarray(values).view(unsigned) & wanted) != 0
    if values.dtype.kind == "f":
        unfit |= np.isnan(values)
    return (~unfit).astype(np.uint8)

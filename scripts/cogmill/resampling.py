"""How a target pixel takes its value from source pixels: the methods, and which bands each of them suits."""

POINT_METHODS = ("nearest", "bilinear", "cubic", "lanczos")  # around the target pixel's centre
AREA_METHODS = ("average", "mode", "min", "max", "median")  # over all source pixels that the target pixel touches
METHODS = POINT_METHODS + AREA_METHODS
INTERPOLATING = ("bilinear", "cubic", "lanczos", "average", "median")  # may give values that no pixel has
ALIASING = ("bilinear", "cubic", "lanczos")  # skip source pixels where a target pixel is larger than their reach
MAX_RATIO = 1.5  # source pixels a target pixel, the most for those


def band_method(method: str, kind: str) -> str:
    """The method by which a band is really taken.

    Parameters
    ----------
    method : str
        One of METHODS, as the product asks for it.
    kind : str
        continuous, classes, bits or mask. Classes are never interpolated; of flags and masks not even the most
        frequent or the largest value means anything.
    """
    if kind == "continuous" or (kind == "classes" and method not in INTERPOLATING):
        return method
    return "nearest"

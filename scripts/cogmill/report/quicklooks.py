"""Quicklooks: a small PNG of each product, made from its overviews."""

import hashlib
import io
import re
from dataclasses import dataclass
from pathlib import Path

import matplotlib
import numpy as np
import rasterio
from PIL import Image, PngImagePlugin
from rasterio.errors import RasterioError

from cogmill.ledger import write_bytes

SIZE = 512  # pixels of the longer side, at most
SAMPLE = 96  # pixels of the longer side that decide the range of colours
LEVELS = 255  # palette entries of a PNG that are colours; one more is transparent
VERSION = "1"  # raised when the same pixels would give another picture
READ_ERRORS = (RasterioError, OSError, ValueError, MemoryError)
# (a - b) / (a + b): lies in -1..1, with zero in the middle
NORMALISED_DIFFERENCE = re.compile(r"\((\w+)-(\w+)\)/\((?:\1\+\2|\2\+\1)\)")


@dataclass(frozen=True)
class Style:
    """Colours of a product: matplotlib colour map and the values at its ends; `classes` have no ends."""

    colours: str
    low: float = 0.0
    high: float = 1.0
    classes: bool = False

    def palette(self) -> np.ndarray:
        """Colours, uint8 (255, 3)."""
        colours = matplotlib.colormaps[self.colours]
        places = np.arange(LEVELS) % colours.N if self.classes else np.linspace(0, 1, LEVELS)
        return (colours(places)[:, :3] * 255 + 0.5).astype(np.uint8)

    def index(self, values: np.ma.MaskedArray) -> np.ndarray:
        """Palette entries, uint8 of the values' shape: 0 invalid, 1..255 the colours."""
        filled = values.filled(0.0)
        if self.classes:
            places = np.mod(filled, LEVELS)
        else:
            places = np.clip((filled - self.low) / (self.high - self.low) * LEVELS, 0, LEVELS - 1)
        return np.where(np.ma.getmaskarray(values), 0, np.floor(places) + 1).astype(np.uint8)

    def css(self, stops: int = 9) -> str:
        """The colour map as a CSS gradient, for the legend."""
        colours = matplotlib.colormaps[self.colours](np.linspace(0, 1, stops))
        return f"linear-gradient(to right, {', '.join(matplotlib.colors.to_hex(colour) for colour in colours)})"


def read_small(path, size: int) -> np.ma.MaskedArray:
    """A product at about `size` pixels, from its overviews.

    Returns
    -------
    masked array, float64 (rows, cols)
        Physical values (scale and offset applied); masked where invalid or not finite.
    """
    with rasterio.open(path) as source:
        factors = source.overviews(1)
        longest = max(source.shape)
        level = next((k for k, factor in enumerate(factors) if -(-longest // factor) <= size), None)
        scale, offset = source.scales[0], source.offsets[0]
        if longest > size and level is None:
            step = -(-longest // size)
            shape = tuple(max(1, -(-side // step)) for side in source.shape)
            values = source.read(1, out_shape=shape, masked=True)
        elif longest <= size:
            values = source.read(1, masked=True)
        else:
            with rasterio.open(path, overview_level=level) as overview:
                values = overview.read(1, masked=True)
    values = np.ma.masked_invalid(values.astype(np.float64))
    return values if (scale, offset) == (1.0, 0.0) else values * scale + offset


def choose_style(spec: dict, paths: list[Path]) -> Style:
    """Colours of a product, one choice for all its scenes, so that they can be compared.

    A normalised difference gets a diverging map over -1..1, other values a sequential one between the 2nd and the 98th
    percentile of all scenes. The maps (brown to blue-green, viridis) can be told apart by the colour-blind.
    """
    if spec.get("kind") in ("classes", "bits"):
        return Style("tab20", classes=True)
    if NORMALISED_DIFFERENCE.fullmatch(re.sub(r"\s", "", str(spec.get("formula") or ""))):
        return Style("BrBG", -1.0, 1.0)
    values = [np.empty(0)]
    for path in paths:
        try:
            values.append(read_small(path, SAMPLE).compressed())
        except READ_ERRORS:
            continue  # the picture of this scene is missing anyway, and said to be
    values = np.concatenate(values)
    if not values.size:
        return Style("viridis")
    low, high = (float(f"{value:.3g}") for value in np.percentile(values, (2, 98)))
    return Style("viridis", low, high) if high > low else Style("viridis", low - 0.5, low + 0.5)


def make_quicklook(product: Path, picture: Path, style: Style, digest: str) -> None:
    """Write a product's picture, unless the one that is there shows the same pixels in the same colours.

    Parameters
    ----------
    product : Path
    picture : Path
        PNG, at most 512 x 512, invalid pixels transparent.
    style : Style
    digest : str
        Identity of the product's pixels.

    Raises
    ------
    RasterioError, OSError, ValueError, MemoryError
        The product is not there or cannot be read.
    """
    name = hashlib.sha256(f"{VERSION} {digest} {style}".encode()).hexdigest()
    if digest and _made_from(picture) == name:
        return
    index = style.index(read_small(product, SIZE))
    image = Image.frombytes("P", index.shape[::-1], index.tobytes())
    image.putpalette(np.vstack([np.zeros((1, 3), np.uint8), style.palette()]).tobytes())
    text = PngImagePlugin.PngInfo()
    text.add_text("cogmill", name)
    data = io.BytesIO()
    image.save(data, "PNG", transparency=0, pnginfo=text)
    write_bytes(picture, data.getvalue())


def _made_from(picture: Path) -> str | None:
    """What a picture was made from, as it says itself; None where there is none."""
    try:
        with Image.open(picture) as image:
            return image.text.get("cogmill")
    except (OSError, ValueError, AttributeError):
        return None

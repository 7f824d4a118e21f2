"""Judge the demo's products by the truth, and say where everything is.

    python check_demo.py FOLDER

The truth is evaluated here, at pixel centres, by the functions of `make_scenes.py`: nothing of cogmill is imported.
Exit code 1 when a product is missing, valid where it must not be or the other way round, or further from the truth
than the rounding of its input allows.
"""

import argparse
import json
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import rasterio
from make_scenes import (
    DAMAGED,
    MASKED_BITS,
    MASKED_CLASSES,
    QA_VALUES,
    SCENES,
    Scene,
    ground,
    reflectance,
    scene_class,
    sky,
    strips,
)

PRODUCTS = {"ndvi": ("nir", "red"), "ndwi": ("green", "nir")}  # (a - b) / (a + b)
FLOAT32 = 1e-6  # a few roundings to float32 of numbers up to 1
STEP = {"ndvi": 0.0, "ndwi": 1e-4}  # packed products are rounded to this step


@dataclass(frozen=True)
class Verdict:
    """How one product compares with the truth; `worst` is the largest error over the one allowed there."""

    scene: str
    product: str
    valid: int
    differing: int
    mean_error: float
    largest_error: float
    worst: float

    @property
    def good(self) -> bool:
        return self.valid > 0 and self.differing == 0 and self.worst <= 1


def clear_truth(scene: Scene) -> np.ndarray:
    """Where a product must be valid, bool (rows, cols): seen, and not masked by the class of its mask band's pixel."""
    band = "scl" if "scl" in scene.files else "qa_pixel"
    factor = scene.factor(band)
    kinds = np.concatenate(
        [scene_class(ground(x, y), sky(x, y, scene.day), scene.seen(x, y), scene.day) for x, y in strips(scene, factor)]
    )
    if band == "scl":
        masked = np.isin(kinds, MASKED_CLASSES)
    else:
        bits = sum(1 << bit for bit in MASKED_BITS)
        masked = np.isin(kinds, [kind for kind, value in QA_VALUES.items() if value & bits])
    rows, cols = scene.shape
    masked = masked.repeat(factor, axis=0).repeat(factor, axis=1)[:rows, :cols]
    return ~masked & scene.seen(*scene.centres())


def index_truth(scene: Scene) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """{product: (value, error allowed)}, each float64 (rows, cols).

    The inputs are rounded to steps of q (the sensor's scale), so each reflectance is off by at most q/2. For
    (a - b) / (a + b) of a, b >= 0 and errors e, f the result is off by 2 (e b - f a) / ((a + b) (a + b + e + f)),
    at most q / (a + b - q).
    """
    parts = {name: [] for name in PRODUCTS}
    for x, y in strips(scene):
        land = ground(x, y)
        bands = {band: reflectance(land, scene.day, band) for band in ("green", "red", "nir")}
        for name, (first, second) in PRODUCTS.items():
            total = bands[first] + bands[second]
            allowed = scene.scale / (total - scene.scale) + STEP[name] / 2 + FLOAT32
            parts[name].append(((bands[first] - bands[second]) / total, allowed))
    return {name: tuple(np.concatenate(column) for column in zip(*rows, strict=True)) for name, rows in parts.items()}


def judge(path: Path, scene: Scene, product: str, truth, allowed, clear) -> Verdict:
    """Compare one product with the truth."""
    with rasterio.open(path) as source:
        found = source.read(1, masked=True)
        value = found.astype(np.float64) * source.scales[0] + source.offsets[0]
    if value.shape != clear.shape:
        raise SystemExit(f"{path}: {value.shape} pixels, wanted {clear.shape}")
    valid = ~np.ma.getmaskarray(value)
    both = valid & clear
    error = np.abs(value.data - truth)[both]
    return Verdict(
        scene.name,
        product,
        int(valid.sum()),
        int((valid != clear).sum()),
        float(error.mean()) if error.size else np.nan,
        float(error.max()) if error.size else np.nan,
        float((error / allowed[both]).max()) if error.size else np.inf,
    )


def judge_scene(products: Path, scene: Scene) -> list[Verdict]:
    """Compare all products of a scene."""
    clear, truths = clear_truth(scene), index_truth(scene)
    return [
        judge(products / scene.name / f"{name}.tif", scene, name, *truths[name], clear)
        for name in PRODUCTS
        if (products / scene.name / f"{name}.tif").exists()
    ]


def damaged_state(products: Path) -> tuple[bool, str]:
    """Whether the damaged scene failed, as it must, and what its record says."""
    record = products / DAMAGED.name / "record.json"
    if not record.exists():
        return False, f"{DAMAGED.name} has no record"
    doc = json.loads(record.read_text(encoding="utf-8"))
    made = sorted(path.name for path in record.parent.glob("*.tif"))
    told = f"{DAMAGED.name}: {doc['state']}, {doc['reason']}: {doc['message']}"
    if made:
        told += f" (and yet there is {', '.join(made)})"
    return doc["state"] == "failed" and not made, told


def table(verdicts: list[Verdict]) -> str:
    """The comparison as text."""
    lines = [
        f"{'scene':<34}{'product':<9}{'valid pixels':>13}{'wrong':>7}{'mean error':>12}{'largest':>10}"
        f"{'% of allowed':>13}"
    ]
    lines += [
        f"{v.scene:<34}{v.product:<9}{v.valid:>13,}{v.differing:>7,}{v.mean_error:>12.1e}{v.largest_error:>10.1e}"
        f"{100 * v.worst:>10.1f} %"
        for v in verdicts
    ]
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description="Compare the demo's products with the truth.")
    parser.add_argument("folder", type=Path, help="folder of the demo")
    results = parser.parse_args().folder / "results"
    products = results / "products"
    verdicts = [verdict for scene in SCENES for verdict in judge_scene(products, scene)]
    made = {(verdict.scene, verdict.product) for verdict in verdicts}
    missing = [f"{s.name}/{name}.tif" for s in SCENES for name in PRODUCTS if (s.name, name) not in made]
    as_wanted, told = damaged_state(products)
    print("Products against the truth at pixel centres (wrong: pixels whose validity differs):\n")
    print(table(verdicts))
    print(f"\nThe damaged scene, {'as it must be' if as_wanted else 'NOT as it must be'}:\n  {told}\n")
    for name, path in (
        ("COGs", f"{products}/SCENE/PRODUCT.tif"),
        ("Pictures", f"{results}/report/quicklooks/"),
        ("Report", f"{results}/report/report.html"),
        ("Methods", f"{results}/report/methods.yaml"),
    ):
        print(f"{name + ':':<10}{path}")
    wrong = [f"{v.scene}/{v.product}.tif" for v in verdicts if not v.good]
    if missing or wrong or not as_wanted:
        sys.exit(f"\nThe demo is wrong. Missing: {missing or 'nothing'}; off the truth: {wrong or 'nothing'}")
    print("\nAll products are as true as their inputs' rounding allows.")


if __name__ == "__main__":
    main()

"""One scene to NDVI on another grid: gdalwarp and gdal_calc, a WarpedVRT loop, and cogmill, on the same cores.

python tests/benchmarks/bench_warp.py --size 6000 --out tests/benchmarks/results/warp_cpu.json
"""

import argparse
import pickle
import shutil
import statistics
import sys
import tempfile
from pathlib import Path

import numpy as np
import rasterio
from rasterio.transform import Affine
from rasterio.warp import transform_bounds

sys.path[:0] = [str(Path(__file__).resolve().parent), str(Path(__file__).resolve().parents[1])]
from made import Made, config_text, write_sheet  # noqa: E402
from measure import Stage, hardware, measured, table, versions, write_json  # noqa: E402

from cogmill.campaign import Campaign  # noqa: E402

TARGET = "EPSG:3035"
RESOLUTION = 10
SCALE = 1e-4
NODATA = -32768
NDVI = {"ndvi": {"formula": "(nir - red) / (nir + red)", "dtype": "int16", "scale": SCALE, "nodata": NODATA}}
EXACT = ["-et", "0"]
BATCH = 5  # scenes of a job, where a job takes several


def make_scene(path: Path, size: int, level: int) -> None:
    """Two bands of textured uint16 in UTM zone 33N, 10 m, with holes of nodata 0, as a tiled ZSTD GeoTIFF."""
    profile = {
        "driver": "GTiff", "width": size, "height": size, "count": 2, "dtype": "uint16", "nodata": 0,
        "crs": "EPSG:32633", "transform": Affine(10, 0, 399960, 0, -10, 5400000), "interleave": "band", "tiled": True,
        "blockxsize": 512, "blockysize": 512, "compress": "ZSTD", "zstd_level": level, "predictor": 2, "num_threads": 2,
    }  # fmt: skip
    random = np.random.default_rng(1)
    with rasterio.open(path, "w", **profile) as file:
        for row in range(0, size, 512):
            rows = min(512, size - row)
            y, x = np.mgrid[row : row + rows, 0:size].astype("f4")
            field = np.sin(x / 37) * np.cos(y / 53) + 0.5 * np.sin((x + 2 * y) / 211)
            noise = random.normal(0, 40, (2, rows, size)).astype("f4")
            bands = np.stack((900 + 300 * field, 2600 - 700 * field)) + noise
            bands[:, (x % 1700 < 120) & (y % 1300 < 90)] = 0
            file.write(np.clip(bands, 0, 60000).astype("u2"), window=((row, row + rows), (0, size)))


def run_gdal(scene: Path, folder: Path, threads: int, level: int, bounds, error: list[str]) -> dict[str, Stage]:
    """gdalwarp of both bands, gdal_calc.py, gdal_translate to COG."""
    warp = ["gdalwarp", "-q", "-overwrite", *error, "-multi", "-wo", f"NUM_THREADS={threads}", "-r", "bilinear"]
    warp += ["-wo", "XSCALE=1", "-wo", "YSCALE=1", "-t_srs", TARGET, "-tr", str(RESOLUTION), str(RESOLUTION)]
    warp += [
        "-te",
        *map(str, bounds),
        "-ot",
        "Float32",
        "-dstnodata",
        "nan",
        "-co",
        "TILED=YES",
        "-co",
        "BIGTIFF=IF_SAFER",
    ]
    # float32 between the steps, as cogmill computes; in uint16 it would be rounded on the way
    both = folder / "both.tif"
    stages = {"gdalwarp": measured([*warp, str(scene), str(both)], threads)}
    formula = f"numpy.where(numpy.isfinite(A+B), numpy.clip(numpy.rint((B-A)/(B+A)/{SCALE}), -32767, 32767), {NODATA})"
    calc = ["gdal_calc.py", "--quiet", "--overwrite", "-A", str(both), "--A_band=1", "-B", str(both), "--B_band=2"]
    calc += [
        f"--calc={formula}",
        "--type=Int16",
        f"--NoDataValue={NODATA}",
        "--hideNoData",
        f"--outfile={folder / 'ndvi.tif'}",
    ]
    stages["gdal_calc"] = measured([*calc, "--co=TILED=YES"], threads)
    cog = [
        "gdal_translate",
        "-q",
        "-of",
        "COG",
        "-co",
        "COMPRESS=ZSTD",
        "-co",
        f"LEVEL={level}",
        "-co",
        "PREDICTOR=YES",
    ]
    cog += ["-co", f"NUM_THREADS={threads}", str(folder / "ndvi.tif"), str(folder / "cog.tif")]
    stages["gdal_translate"] = measured(cog, threads)
    return stages


VRT_LOOP = """
import sys
import numpy as np, rasterio
from rasterio.enums import Resampling
from rasterio.shutil import copy
from rasterio.vrt import WarpedVRT
from rasterio.windows import Window
scene, folder, threads, level, left, bottom, right, top = sys.argv[1:]
left, bottom, right, top = map(float, (left, bottom, right, top))
cols, rows = round((right - left) / {resolution}), round((top - bottom) / {resolution})
transform = rasterio.Affine({resolution}, 0, left, 0, -{resolution}, top)
warp = dict(crs="{target}", transform=transform, width=cols, height=rows, resampling=Resampling.bilinear, nodata=np.nan,
            dtype="float32", tolerance=1e-6, warp_extras=dict(XSCALE=1, YSCALE=1, NUM_THREADS=threads))
profile = dict(driver="GTiff", width=cols, height=rows, count=1, dtype="int16", nodata={nodata}, crs="{target}",
               transform=transform, tiled=True, blockxsize=512, blockysize=512)
with rasterio.Env(GDAL_NUM_THREADS=threads), rasterio.open(scene) as source, WarpedVRT(source, **warp) as vrt:
    with rasterio.open(folder + "/ndvi.tif", "w", **profile) as out:
        for row in range(0, rows, 512):
            for col in range(0, cols, 512):
                window = Window(col, row, min(512, cols - col), min(512, rows - row))
                red, nir = vrt.read(window=window)
                with np.errstate(all="ignore"):
                    ndvi = np.rint((nir - red) / (nir + red) / {scale})
                ndvi = np.where(np.isfinite(ndvi), ndvi.clip(-32767, 32767), {nodata})
                out.write(ndvi.astype("int16"), 1, window=window)
    copy(folder + "/ndvi.tif", folder + "/cog.tif", driver="COG", compress="ZSTD", level=level, predictor="YES",
         num_threads=threads)
"""


def run_vrt(scene: Path, folder: Path, threads: int, level: int, bounds) -> dict[str, Stage]:
    """Windows of both bands through rasterio's WarpedVRT, NDVI in NumPy, GDAL's COG driver.

    The VRT keeps the type of its source, so its bands are rounded to whole numbers and many pixels differ.
    """
    program = VRT_LOOP.format(resolution=RESOLUTION, target=TARGET, nodata=NODATA, scale=SCALE)
    arguments = [str(scene), str(folder), str(threads), str(level), *map(str, bounds)]
    return {"warped_vrt": measured([sys.executable, "-c", program, *arguments], threads)}


STEP = """
import pickle, sys
step, arguments = pickle.load(open(sys.argv[1], "rb"))
if step == "to_cog":
    from cogmill.ingest import to_cog as run
elif step == "warp_grid":
    from cogmill.warpgrid import make_control_grid as run
else:
    from cogmill.supervisor import compute_batch as run
done = [run(**each) for each in arguments]
lines = done[0] if isinstance(done[0], list) else done
assert all(line["state"] == "done" for line in lines), [line["message"] for line in lines]
"""


def run_cogmill(
    scene: Path, folder: Path, threads: int, level: int, bounds, max_error_px=0.01, scenes: int = 1
) -> dict[str, Stage]:
    """The three steps, each in a process of its own, as a job runs them; seconds of one of the `scenes` of a job."""
    keys = {"cog": {"zstd_level": level}, "compute": {"zstd_level": level}}
    keys["grid"] = {"crs": TARGET, "resolution": RESOLUTION, "extent": list(bounds), "max_error_px": max_error_px}
    write_sheet(folder, [{"scene": f"S{n}", "sensor": "rednir", "path": str(scene)} for n in range(scenes)])
    campaign = Campaign.from_config(config_text(folder, NDVI, **keys), [], check_files=False)
    made = Made(campaign, folder / "results")
    steps = {
        "to_cog": [
            {"scene": id_, "record": made.path("cogs", id_), "threads": threads, **campaign.ingest_params(id_)}
            for id_ in campaign.scenes
        ],
        "warp_grid": [
            {
                "cogs_record": made.path("cogs", id_),
                "params": campaign.grid_params(id_),
                "out_record": made.path("grids", id_),
            }
            for id_ in campaign.scenes
        ],
        "compute": [made.batch() | {"threads": threads}],
    }
    stages = {}
    for step, arguments in steps.items():
        (folder / step).write_bytes(pickle.dumps((step, arguments)))
        whole = measured([sys.executable, "-c", STEP, str(folder / step)], threads)
        stages[step] = Stage(whole.seconds / scenes, whole.peak_memory_mb)
    shutil.copy(made.path("products", "S0").parent / "ndvi.tif", folder / "cog.tif")
    return stages


def compare(path: Path, reference: Path) -> dict:
    """How many pixels of two int16 products differ, and by how much."""
    with rasterio.open(path) as one, rasterio.open(reference) as other:
        assert (one.shape, one.transform) == (other.shape, other.transform)
        counts = {"pixels": one.width * one.height, "valid": 0, "validity": 0, "by_1": 0, "by_more": 0}
        for row in range(0, one.height, 512):
            window = ((row, min(row + 512, one.height)), (0, one.width))
            a, b = (file.read(1, window=window).astype("i4") for file in (one, other))
            valid = (a != NODATA) & (b != NODATA)
            counts["valid"] += int(valid.sum())
            counts["validity"] += int(((a != NODATA) != (b != NODATA)).sum())
            difference = np.abs(a - b)[valid]
            counts["by_1"] += int((difference == 1).sum())
            counts["by_more"] += int((difference > 1).sum())
    return counts


def extent(scene: Path) -> list[int]:
    """Bounds of the scene in the target's CRS, at whole pixels."""
    with rasterio.open(scene) as file:
        left, bottom, right, top = transform_bounds(file.crs, TARGET, *file.bounds)
    step = RESOLUTION
    return [
        int(left // step * step),
        int(bottom // step * step),
        int(-(-right // step) * step),
        int(-(-top // step) * step),
    ]


def contenders(threads: int, level: int, bounds) -> dict:
    """{name: function of scene and folder}, of what is installed."""
    found = {"warped_vrt": lambda scene, folder: run_vrt(scene, folder, threads, level, bounds)}
    if all(shutil.which(name) for name in ("gdalwarp", "gdal_calc.py", "gdal_translate")):
        found["gdalwarp"] = lambda scene, folder: run_gdal(scene, folder, threads, level, bounds, EXACT)
        found["gdalwarp_default"] = lambda scene, folder: run_gdal(scene, folder, threads, level, bounds, [])
    found["cogmill"] = lambda scene, folder: run_cogmill(scene, folder, threads, level, bounds)
    found["cogmill_batch"] = lambda scene, folder: run_cogmill(scene, folder, threads, level, bounds, scenes=BATCH)
    found["cogmill_exact"] = lambda scene, folder: run_cogmill(scene, folder, threads, level, bounds, 0)
    return found


def benchmark(size: int, threads: int, level: int, repeat: int, work: Path) -> dict:
    """Run all contenders by turns; the result as a document."""
    scene = work / "scene.tif"
    make_scene(scene, size, level)
    runs = contenders(threads, level, extent(scene))
    seen: dict[str, list] = {name: [] for name in runs}
    for number in range(repeat):
        for name, run in runs.items():
            folder = work / f"{name}-{number}"
            folder.mkdir()
            seen[name].append(run(scene, folder))
            if number:
                shutil.rmtree(folder)
    reference = work / ("gdalwarp-0" if "gdalwarp" in runs else "warped_vrt-0") / "cog.tif"
    with rasterio.open(reference) as file:
        pixels = file.width * file.height
    results = {name: summary(name, turns, work, reference) for name, turns in seen.items()}
    return {
        "command": " ".join(["python", *sys.argv]),
        "size": size,
        "target_pixels": pixels,
        "threads": threads,
        "zstd_level": level,
        "repeat": repeat,
        "reference": reference.parent.name.removesuffix("-0"),
        "hardware": hardware(),
        "versions": versions(),
        "results": results,
    }


def summary(name: str, turns: list[dict[str, Stage]], work: Path, reference: Path) -> dict:
    """Medians over the turns. `to_cog` makes a lasting store, so it is not in the total."""
    stages = {
        stage: {
            "seconds": round(statistics.median(turn[stage].seconds for turn in turns), 3),
            "all_seconds": [round(turn[stage].seconds, 3) for turn in turns],
            "peak_memory_mb": max(turn[stage].peak_memory_mb for turn in turns),
        }
        for stage in turns[0]
    }
    product = work / f"{name}-0" / "cog.tif"
    counted = {stage: value for stage, value in stages.items() if stage != "to_cog"}
    return {
        "stages": stages,
        "seconds": round(sum(stage["seconds"] for stage in counted.values()), 3),
        "peak_memory_mb": max(stage["peak_memory_mb"] for stage in counted.values()),
        "output_bytes": product.stat().st_size,
        "against_reference": compare(product, reference),
    }


def main(arguments=None) -> None:
    """Run, print a table, write the document."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=6000, help="pixels a side")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--level", type=int, default=9, help="ZSTD level of all outputs")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--out", type=Path, help="JSON file")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="bench_warp_") as folder:
        document = benchmark(options.size, options.threads, options.level, options.repeat, Path(folder))
    lines = [
        (
            name,
            ", ".join(f"{stage} {value['seconds']:.2f}" for stage, value in result["stages"].items()),
            f"{result['seconds']:.2f}",
            f"{result['peak_memory_mb']:.0f}",
            f"{result['output_bytes'] / 1e6:.2f}",
            "{validity}/{by_1}/{by_more}".format(**result["against_reference"]),
        )
        for name, result in document["results"].items()
    ]
    sys.stdout.write(
        table(("", "stages (s)", "total (s)", "memory (MB)", "size (MB)", "differing validity/by 1/by more"), lines)
        + "\n"
    )
    if options.out:
        write_json(options.out, document)


if __name__ == "__main__":
    main()

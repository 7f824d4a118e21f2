"""How cogmill's time and memory grow with the raster: NDVI of one scene on another grid.

python tests/benchmarks/bench_growth.py --out tests/benchmarks/results/growth_cpu.json
"""

import argparse
import shutil
import sys
import tempfile
from pathlib import Path

from bench_warp import extent, make_scene, run_cogmill
from measure import hardware, table, versions, write_json

SIZES = (2000, 6000, 12000, 20000)


def main(arguments=None) -> None:
    """Run, print a table, write the document."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, help="pixels a side")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--level", type=int, default=9, help="ZSTD level of all outputs")
    parser.add_argument("--out", type=Path, help="JSON file")
    options = parser.parse_args(arguments)
    results = []
    for size in options.sizes:
        with tempfile.TemporaryDirectory(prefix="bench_growth_") as folder:
            results.append(measure(size, options.threads, options.level, Path(folder)))
        compute = results[-1]["stages"]["compute"]
        line = (size, f"{compute['seconds_per_megapixel']:.4f} s/Mpx", f"{compute['peak_memory_mb']:.0f} MB")
        sys.stdout.write(table(("size", "compute", "memory"), [line]) + "\n")
    document = {"command": " ".join(["python", *sys.argv]), "threads": options.threads, "zstd_level": options.level}
    document |= {"hardware": hardware(), "versions": versions(), "results": results}
    if options.out:
        write_json(options.out, document)


def measure(size: int, threads: int, level: int, work: Path) -> dict:
    """Seconds a megapixel of the target and peak memory of each step."""
    scene = work / "scene.tif"
    make_scene(scene, size, level)
    left, bottom, right, top = bounds = extent(scene)
    megapixels = (right - left) * (top - bottom) / 100 / 1e6
    folder = work / "cogmill"
    folder.mkdir()
    stages = {
        name: {
            "seconds": round(stage.seconds, 3),
            "seconds_per_megapixel": round(stage.seconds / megapixels, 5),
            "peak_memory_mb": stage.peak_memory_mb,
        }
        for name, stage in run_cogmill(scene, folder, threads, level, bounds).items()
    }
    shutil.rmtree(folder)
    return {"size": size, "target_megapixels": round(megapixels, 3), "stages": stages}


if __name__ == "__main__":
    main()

"""A campaign: config, sheet and sensors together, and what the rules and the command line ask of them."""

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha1

from cogmill.config import Config, read_config
from cogmill.ledger import ingest_key, read_json
from cogmill.resampling import INTERPOLATING
from cogmill.scenes import Scene, is_local, read_sheet, seen_from, sidecars
from cogmill.schema import Spot
from cogmill.sensors import Sensor, Sensors
from cogmill.yamlfiles import Problems, nearest

SURE = 0.8  # how alike a band's name must be to be proposed; else the sensor's bands are told
LONGEST = 4  # a batch has at most this many times the scenes asked for


@dataclass(frozen=True)
class Campaign:
    """What was asked for.

    Parameters
    ----------
    config : Config
    scenes : dict
        {id: Scene} in the sheet's order.
    products : list of str
        Names, in the config's order.
    batches : dict
        {id of the first scene: ids}; see `cut_batches`.
    stored : dict
        {sensor name: bands that the COG store holds, in the sensor's order}.
    """

    config: Config
    scenes: dict[str, Scene]
    products: list[str]
    batches: dict[str, list[str]]
    stored: dict[str, list[str]]

    @classmethod
    def from_config(
        cls,
        doc: dict,
        sources=(),
        check_files: bool = True,
        stored: Callable[[str, str | None], bool] = lambda scene, key: False,
    ) -> "Campaign":
        """Check config, sheet and sensors together.

        Parameters
        ----------
        doc : dict
            The config in force, as Snakemake merged it.
        sources : sequence of (path, text)
            The files that it comes from, the one that wins last.
        check_files : bool
            Whether local files that sheet and config name must be there.
        stored : function of a scene id and a key
            Whether the COG store has the scene's record with this `ingest_key` (None: with any); its files may be
            gone then. Asked only of scenes that lack a file.

        Raises
        ------
        ConfigError
            All mistakes of all files, one a line, each with file, line and column.
        """
        problems = Problems()
        config, spot = read_config(doc, sources, problems)
        scenes: tuple[Scene, ...] = ()
        if config and config.sheet and config.sensors:
            sensors = Sensors(config.sensors, problems)
            if check_files:
                _check_like(config, spot)
            scenes = _read_scenes(config, spot, sensors, problems, check_files, stored)
            _check_bands(config, spot, scenes, sensors)
        problems.stop()
        ids = {scene.scene: scene for scene in scenes}
        used = {scene.sensor.name: scene.sensor for scene in scenes}
        stored = {name: _stored_bands(config, sensor) for name, sensor in used.items()}
        return cls(config, ids, list(config.products), cut_batches(ids, config.batch_size), stored)

    def needed_bands(self, scene: str) -> list[str]:
        """Bands of a scene to store, in the sensor's order."""
        return self.stored[self.scenes[scene].sensor.name]

    def ingest_params(self, scene: str) -> dict:
        """What `cogmill.ingest.to_cog` is given besides paths and threads."""
        return _store_params(self.config, self.scenes[scene]) | {
            "max_attempts": self.config.max_attempts,
            "spool_mb": self.config.memory.spool_mb,
        }

    def source_files(self, scene: str, with_lost: bool = False, record: str | None = None) -> list[str]:
        """Local files of a scene that are there, with their sidecars: what Snakemake watches for changes.

        Parameters
        ----------
        scene : str
        with_lost : bool
            Add a name for each needed file that is not there. Snakemake leaves a record alone whose inputs are lost,
            while one with fewer inputs than before would be made again.
        record : path, optional
            The scene's `cogs` record, which knows the sidecars of the files that are lost.
        """
        line, required = self.scenes[scene], _needed_roles(self.config)
        choices = {role: line.files_of(role) for role in self.needed_bands(scene)}
        if line.mask:
            choices["mask"] = [line.mask]
            required |= {"mask"}
        paths = []
        for role, choice in choices.items():
            there = [path for path in choice if os.path.exists(path)]
            lost = with_lost and not there and role in required and is_local(choice[0])
            paths += choice[:1] if lost else there
        gone = [path for path in paths if not os.path.exists(path)]
        known = _known_sidecars(record) if gone and record else {}
        beside = [name for path in paths for name in (known.get(path, []) if path in gone else sidecars(path))]
        return list(dict.fromkeys(paths + beside))

    def grid_params(self, scene: str) -> dict:
        """What `cogmill.warpgrid.make_control_grid` is given: the target, and the bands that must share a grid."""
        names = {name for product in self.config.products.values() for name in product.formula.names}
        # a new mask must not place the scenes anew that have no band for it
        masks = set(self.config.masks) & set(self.scenes[scene].sensor.bands)
        grid, warp = self.config.grid, self.config.warp
        return {
            "crs": grid.crs,
            "resolution": grid.resolution and [float(size) for size in grid.resolution],
            "aligned": grid.aligned,
            "extent": "scene" if grid.extent == "scene" else [float(edge) for edge in grid.extent],
            "like": grid.like,
            "max_error_px": float(grid.max_error_px),
            "engine": warp.engine,
            "allow_ballpark": warp.allow_ballpark,
            "bands": sorted(names),
            "masks": sorted(masks),
        }

    def like_files(self) -> list[str]:
        """The local file whose grid all products get, and its sidecars: what Snakemake watches for changes."""
        like = self.config.grid.like
        return [like, *sidecars(like)] if like and os.path.exists(like) else []

    def compute_params(self, scenes: list[str], product: str | None = None) -> dict:
        """What decides the pixels of some scenes: {"products": {name: fields}, "masks": {band: rule}, "warp": keys}."""
        config, names = self.config, [product] if product else self.products
        sensors = {self.scenes[scene].sensor.name: self.scenes[scene].sensor for scene in scenes}
        # a mask that no scene of the batch has a band for must not redo the batch when it changes
        roles = {role for sensor in sensors.values() for role in sensor.bands}
        return {
            "products": {name: config.products[name].to_json(name, config.warp.resampling) for name in names},
            "masks": {role: rule.to_json() for role, rule in sorted(config.masks.items()) if role in roles},
            "warp": {"order": config.warp.order, "allow_aliasing": config.warp.allow_aliasing},
        }

    def run_params(self) -> dict:
        """What changes no pixel."""
        compute, memory = self.config.compute, self.config.memory
        return {
            "device": compute.device,
            "window": compute.window,
            "zstd_level": compute.zstd_level,
            "stall_s": compute.stall_s,
            "spool_mb": memory.spool_mb,
            "window_mb": memory.window_mb,
            "max_attempts": self.config.max_attempts,
            "self_check": self.config.self_check,
        }


def cut_batches(scenes, size: int) -> dict[str, list[str]]:
    """Cut scenes into batches of about `size`, so that one more or one less changes one batch or two.

    A batch begins at an id whose hash is the smallest among its `size - 1` neighbours. That hangs on the neighbours
    alone, never on a position, and no two such ids are near each other.

    Parameters
    ----------
    scenes : iterable of str
        Ids, each once.
    size : int
        Scenes of a batch on average; the first and the last one may be smaller, and none is over four times that.

    Returns
    -------
    dict
        {first id: ids}, in order; every id is in one batch.
    """
    ids = list(scenes)
    hashes = [int(sha1(scene.encode()).hexdigest()[:16], 16) for scene in ids]
    before = (size - 1) // 2
    after = size - 1 - before
    starts = [
        i for i in range(max(1, before), len(ids) - after) if hashes[i] == min(hashes[i - before : i + after + 1])
    ]
    batches = {}
    for first, end in zip([0, *starts], [*starts, len(ids)], strict=True):
        for start in range(first, end, LONGEST * size):
            batch = ids[start : min(end, start + LONGEST * size)]
            batches[batch[0]] = batch
    return batches


def _known_sidecars(record: str) -> dict[str, list[str]]:
    """{path of a source: its sidecars} as a `cogs` record has them; empty where there is none to be read."""
    try:
        return {source["path"]: source["sidecars"] for source in read_json(record)["sources"]}
    except (FileNotFoundError, ValueError, KeyError):
        return {}


def _store_params(config: Config, scene: Scene) -> dict:
    """What decides a scene's COG store: what `ingest_key` takes."""
    cog = config.cog
    return {
        "row": scene.to_json(),
        "sensor": scene.sensor.params,
        "bands": _stored_bands(config, scene.sensor),
        "cog": {"bands": cog.bands, "overviews": cog.overviews, "zstd_level": cog.zstd_level},
    }


def _stored_bands(config: Config, sensor: Sensor) -> list[str]:
    needed = _needed_roles(config)
    return [role for role in sensor.bands if config.cog.bands == "all" or role in needed]


def _needed_roles(config: Config) -> set[str]:
    """Bands that products or masks name."""
    names = {name for product in (config.products or {}).values() for name in product.formula.names}
    return names | set(config.masks or {})


def _read_scenes(config: Config, spot: Spot, sensors: Sensors, problems: Problems, check_files: bool, stored):
    def needed(sensor: Sensor) -> list[str]:
        roles = _needed_roles(config)
        return [role for role in sensor.bands if role in roles]

    if not os.path.exists(config.sheet):
        where = spot.child("sheet") if "sheet" in spot.value else spot
        where.problem(f"the sample sheet {config.sheet} is not found{seen_from(config.sheet)}")
        return ()
    whole = not problems  # of a config with mistakes, nobody knows what it asks for

    def has_record(scene: Scene) -> bool:
        return stored(scene.scene, ingest_key(**_store_params(config, scene)) if whole else None)

    return read_sheet(config.sheet, sensors, problems, needed if check_files else None, has_record)


def _check_like(config: Config, spot: Spot) -> None:
    like = config.grid and config.grid.like
    if like and is_local(like) and not os.path.exists(like):
        spot.child("grid").child("like").problem(f"the file {like} is not found{seen_from(like)}")


def _check_bands(config: Config, spot: Spot, scenes: tuple[Scene, ...], sensors: Sensors) -> None:
    """Note products and masks that name bands which scenes, or all sensors, lack, or which do not suit them."""
    used: dict[str, list[Scene]] = {}
    for scene in scenes:
        used.setdefault(scene.sensor.name, []).append(scene)
    for name, product in (config.products or {}).items():
        for band in product.formula.names:
            for lines in used.values():
                if band not in lines[0].sensor.bands:
                    _lacking_band(spot.child("products").child(name), product.formula.text, band, lines)
        codes = [
            f"band '{band}' of sensor '{sensor.name}' holds {sensor.bands[band].kind}"
            for sensor in (lines[0].sensor for lines in used.values())
            for band in product.formula.names
            if band in sensor.bands and sensor.bands[band].kind != "continuous"
        ]
        if product.kind != "continuous" and config.warp and config.warp.order == "index_then_warp":
            codes.append(f"with warp.order 'index_then_warp' the product itself is resampled, and holds {product.kind}")
        if codes and product.resampling in INTERPOLATING:
            at = spot.child("products").child(name).child("resampling")
            at.problem(f"'{product.resampling}', but classes are never interpolated: {codes[0]}; leave it out")
    for role in config.masks or {}:
        at, bands = spot.child("masks").child(role), [lines[0].sensor.bands.get(role) for lines in used.values()]
        if not any(bands) and role not in (every := sensors.roles()):
            at.problem(f"no sensor has a band '{role}'{nearest(role, every)}", of_key=True)
        if any(band and band.kind == "continuous" for band in bands):
            at.problem(f"band '{role}' holds measurements; a band of classes or bits is wanted", of_key=True)


def _lacking_band(spot: Spot, formula: str, band: str, scenes: list[Scene]) -> None:
    sensor = scenes[0].sensor
    others = f" and {len(scenes) - 3} more" if len(scenes) > 3 else ""
    ids = ", ".join(f"'{scene.scene}'" for scene in scenes[:3])
    alias = next(
        (role for role, entry in sensor.bands.items() if band.casefold() in map(str.casefold, entry.names)),
        None,
    )
    advice = f" - it is called '{alias}' there" if alias else nearest(band, sensor.bands, SURE)
    at = spot if isinstance(spot.value, str) else spot.child("formula")
    position = re.search(rf"\b{re.escape(band)}\b", formula).start()
    at.problem_at(position, f"sensor '{sensor.name}' of scene {ids}{others} has no band '{band}'{advice}")

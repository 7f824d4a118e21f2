"""Files made from the descriptions of the keys: commented config, JSON schemas, tables of the docs."""

import argparse
import re
import sys
import textwrap
from pathlib import Path

import yaml

from cogmill.config import Config
from cogmill.scenes import COLUMNS
from cogmill.schema import (
    MISSING,
    Either,
    ListOf,
    MapOf,
    Number,
    OneOrEach,
    Section,
    Whole,
    default_of,
    keys_of,
)
from cogmill.sensors import Sensor, SensorBand

ROOT = Path(__file__).resolve().parents[2]
COMMAND = "python -m cogmill.config --write"
WIDTH = 110
TABLE = re.compile(r"(<!-- table (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)
CONFIG = "config/config.yaml"
HEAD = f"# Made by `{COMMAND}`; change the descriptions in scripts/cogmill instead.\n"
CONFIG_HEAD = """\
# The config of your campaign: change the values below. Every key is here with its default; README.md explains more.
# A key that is left out or empty takes its default. Several files (--configfile) are merged, the last one wins.
"""


def main(arguments: list[str] | None = None) -> int:
    """Write the made files, or say which are out of date (exit code 1)."""
    parser = argparse.ArgumentParser(prog="python -m cogmill.config", description=__doc__)
    parser.add_argument("--write", action="store_true", help="write the files; without it they are only compared")
    parser.add_argument("--root", type=Path, default=ROOT, help="the repository (default: %(default)s)")
    args = parser.parse_args(arguments)
    stale = {path: text for path, text in made_files(args.root).items() if _read(path) != text}
    config = args.root / CONFIG
    if config in stale and _is_users(_read(config), stale[config]):
        del stale[config]
        sys.stdout.write(f"{config}: left alone, it holds values of yours; delete it to have it made anew\n")
    for path, text in stale.items():
        if args.write:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        sys.stdout.write(f"{path}: {'written' if args.write else f'out of date; run `{COMMAND}`'}\n")
    return 1 if stale and not args.write else 0


def made_files(root: Path) -> dict[Path, str]:
    """{path: text} of all files that are made from the descriptions."""
    files = {root / f"workflow/schemas/{name}.schema.yaml": _schema_text(schema) for name, schema in schemas().items()}
    files[root / CONFIG] = config_text()
    for readme in (root / "config/README.md", root / "config/sensors/README.md"):
        files[readme] = TABLE.sub(lambda found: found[1] + TABLES[found[2]]() + found[3], _read(readme) or "")
    return files


def schemas() -> dict[str, dict]:
    """JSON schemas of the config, of a sensor file and of a line of the sheet, by name."""
    config, sensor = Section(Config).schema(), Section(Sensor).schema()
    columns = {
        column.name: {
            "description": column.text,
            "type": "string",
            "pattern": f"^({column.pattern})$" if column.required else f"^({column.pattern})?$",
        }
        for column in COLUMNS.values()
    }
    scenes = {
        "type": "object",
        "properties": columns,
        "required": [column.name for column in COLUMNS.values() if column.required],
        "additionalProperties": False,
    }
    return {
        name: {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": title, **schema}
        for name, title, schema in (
            ("config", "Config of a campaign", config),
            ("sensor", "Sensor file", sensor),
            ("scenes", "Line of the sample sheet", scenes),
        )
    }


def config_text() -> str:
    """`config/config.yaml`: every key with its default, explained."""
    return CONFIG_HEAD + "".join(_key_text(item, "") for item in keys_of(Config).values())


def _is_users(text: str | None, made: str) -> bool:
    """Whether a config holds values other than the made ones. Keys of only one of them do not count: keys come and go.

    Names of products, masks and paths are values: whoever adds one wants to keep it.
    """
    if text is None:
        return False
    try:
        mine = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError):
        return True  # who wrote it will want to mend it

    def differ(mine, made, cls: type) -> bool:
        if not isinstance(mine, dict):
            return mine is not None
        for item in keys_of(cls).values():
            if item.name not in mine or item.name not in made:
                continue
            kind, pair = item.metadata["kind"], (mine[item.name], made[item.name])
            if differ(*pair, kind.cls) if isinstance(kind, Section) else repr(pair[0]) != repr(pair[1]):
                return True
        return False

    return differ(mine, yaml.safe_load(made), Config)


def _key_text(item, indent: str) -> str:
    kind, default = item.metadata["kind"], default_of(item)
    blank = "" if indent else "\n"
    comment = blank + _comment(item.metadata["text"], indent)
    if isinstance(kind, Section):
        return f"{comment}{item.name}:\n" + "".join(_key_text(sub, "  ") for sub in keys_of(kind.cls).values())
    if item.metadata["example"] is None:
        return f"{comment}{indent}{item.name}: {_scalar(default)}\n"
    if isinstance(kind, MapOf) and isinstance(kind.kind, Section):
        comment += _comment("Keys:", indent) + "".join(_sub_key_text(sub) for sub in keys_of(kind.kind.cls).values())
    first, *rest = item.metadata["example"].splitlines()
    if first == "{}":
        return f"{comment}{item.name}: {{}}\n" + "".join(f"{line}\n" for line in rest)
    return f"{comment}{item.name}:\n" + "".join(f"  {line}\n" for line in (first, *rest))


def _sub_key_text(item) -> str:
    default = default_of(item)
    end = " Required." if default is MISSING else f" Default: {_scalar(default)}." if default not in (None, ()) else ""
    text = f"{item.name:<12} {_words(item.metadata['kind'])}{item.metadata['text']}{end}"
    return textwrap.fill(text, WIDTH, initial_indent="#   ", subsequent_indent="#" + " " * 16) + "\n"


def _comment(text: str, indent: str) -> str:
    return textwrap.fill(text, WIDTH, initial_indent=f"{indent}# ", subsequent_indent=f"{indent}# ") + "\n"


def _words(kind) -> str:
    words = getattr(kind, "words", None)
    return f"{' | '.join(words)}. " if words else ""


def _scalar(value) -> str:
    if isinstance(value, (tuple, dict)):
        return str(list(value)) if isinstance(value, tuple) else "{}"
    if value is None:
        return "~"
    return yaml.safe_dump(value, allow_unicode=True).removesuffix("...\n").strip()


def _schema_text(schema: dict) -> str:
    return HEAD + yaml.safe_dump(schema, sort_keys=False, allow_unicode=True, width=WIDTH)


def _read(path: Path) -> str | None:
    return path.read_text(encoding="utf-8") if path.exists() else None


def _table(head: tuple[str, ...], rows) -> str:
    lines = [head, tuple("---" for _ in head), *rows]
    return "".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |\n" for line in lines)


def _key_rows(cls: type, prefix: str = ""):
    for item in keys_of(cls).values():
        kind, default = item.metadata["kind"], default_of(item)
        name = prefix + item.name
        if isinstance(kind, Section):
            yield from _key_rows(kind.cls, f"{name}.")
            continue
        shown = "required" if default is MISSING else "empty" if default is None else f"`{_scalar(default)}`"
        yield f"`{name}`", _kind_words(kind), shown, item.metadata["text"]
        if isinstance(kind, MapOf) and isinstance(kind.kind, Section) and cls is Config:
            yield from _key_rows(kind.kind.cls, f"{name}.NAME.")


def _kind_words(kind) -> str:
    if isinstance(kind, (Number, Whole)):
        word = "number" if isinstance(kind, Number) else "whole number"
        above = kind.low == 0 and not kind.zero
        limits = [
            "above 0" if above else f"from {kind.low}" if kind.low is not None else "",
            f"to {kind.high}" if kind.high is not None else "",
        ]
        return " ".join([word, *filter(None, limits)])
    if isinstance(kind, Either):
        return f"`{kind.word}` or {_kind_words(kind.kind)}"
    if isinstance(kind, OneOrEach):
        return f"{_kind_words(kind.each.kind)}, or one each: `[{', '.join(kind.each.names)}]`"
    if isinstance(kind, ListOf) and kind.names:
        return f"`[{', '.join(kind.names)}]`"
    if isinstance(kind, ListOf):
        return f"list, each {_kind_words(kind.kind)}"
    if isinstance(kind, MapOf):
        return "names with values"
    words = getattr(kind, "words", None)
    if words:
        return ", ".join(f"`{word}`" for word in words)
    known = {"Flag": "true, false", "Formula": "formula", "Crs": "`source`, code, WKT or PROJ text"}
    return known.get(type(kind).__name__, "text")


TABLES = {
    "config": lambda: _table(("key", "values", "default", "meaning"), _key_rows(Config)),
    "sheet": lambda: _table(
        ("column", "", "meaning"),
        ((f"`{column.name}`", "required" if column.required else "", column.text) for column in COLUMNS.values()),
    ),
    "sensor": lambda: _table(("key", "values", "default", "meaning"), _key_rows(Sensor)),
    "band": lambda: _table(("key", "values", "default", "meaning"), _key_rows(SensorBand)),
}


if __name__ == "__main__":
    sys.exit(main())

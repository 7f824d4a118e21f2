"""Typed keys: one description of a key gives its check, its default, its explanation and its JSON schema.

A file format is a frozen dataclass whose fields are made by `key`. Reading never stops at a mistake: it is noted, the
field becomes None, and the caller raises when everything has been looked at.
"""

import dataclasses
import json
import math
import re
from dataclasses import MISSING, dataclass, field

from cogmill.yamlfiles import CONTROL, Problems, YamlFiles, decimal_point, nearest

# YAML 1.1, which PyYAML and Snakemake read, takes 1e-4 (no point) for text; people mean a number.
EXPONENT = r"[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)[eE][-+]?[0-9]+"


@dataclass(frozen=True)
class Spot:
    """A value under check: where it stands, and where its mistakes go."""

    files: YamlFiles
    problems: Problems
    value: object
    path: tuple = ()

    @property
    def name(self) -> str:
        return ".".join(map(str, self.path))

    def child(self, part) -> "Spot":
        return Spot(self.files, self.problems, self.value[part], (*self.path, part))

    def problem(self, text: str, of_key: bool = False) -> None:
        """Note a mistake of this value (or of the key itself)."""
        place = self.files.place(self.path, self.value, of_key)
        self.problems.add(place, f"key '{self.name}': {text}" if self.path else text)

    def problem_at(self, position: int, text: str) -> None:
        """Note a mistake at a character of this text value."""
        place = self.files.place_in_text(self.path, self.value, position)
        if place:
            self.problems.add(place, f"key '{self.name}': {text}")
        else:
            self.problem(f"{text} (character {position + 1} of {self.value!r})")


def key(kind, text: str, default=MISSING, example: str | None = None):
    """A dataclass field: its kind, what it means, its default (required without one), an example for the docs."""
    metadata = {"kind": kind, "text": text, "example": example}
    if isinstance(default, (dict, list)):
        return field(default_factory=lambda: type(default)(default), metadata=metadata)
    return field(default=default, metadata=metadata)


def keys_of(cls: type) -> dict[str, dataclasses.Field]:
    """Fields of a dataclass that were made by `key`, by name."""
    return {item.name: item for item in dataclasses.fields(cls) if "kind" in item.metadata}


def default_of(item: dataclasses.Field):
    """Default of a key, MISSING where it is required."""
    return item.default if item.default_factory is MISSING else item.default_factory()


def shown(value) -> str:
    """A value as messages show it."""
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return f"{str(value).lower()} (yes/no)"
    if isinstance(value, str):
        return f"text {value!r}"
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, (list, tuple)):
        return "a list"
    return str(value)


@dataclass(frozen=True)
class Text:
    """One line of text; `pattern` must match the whole of it, `wanted` says so in words."""

    pattern: str | None = None
    wanted: str = "text"

    def read(self, spot: Spot) -> str | None:
        value = spot.value
        if not isinstance(value, str):
            hint = "" if isinstance(value, (dict, list)) or value is None else " in quotes"
            return spot.problem(f"{shown(value)} found, {self.wanted}{hint} wanted")
        if not value.strip() or CONTROL.search(value):
            return spot.problem(f"{value!r} found, {self.wanted} wanted, in one line")
        if self.pattern and not re.fullmatch(self.pattern, value):
            return spot.problem(f"{value!r} found, {self.wanted} wanted")
        return value

    def schema(self) -> dict:
        return {"type": "string", "pattern": f"^({self.pattern})$" if self.pattern else r"\S"}


@dataclass(frozen=True)
class Flag:
    """true or false."""

    def read(self, spot: Spot) -> bool | None:
        if isinstance(spot.value, bool):
            return spot.value
        return spot.problem(f"{shown(spot.value)} found, true or false wanted")

    def schema(self) -> dict:
        return {"type": "boolean"}


@dataclass(frozen=True)
class Number:
    """A finite number within [low, high]; `nan` allows not-a-number too (as .nan or the word nan)."""

    low: float | None = None
    high: float | None = None
    nan: bool = False
    zero: bool = True

    def read(self, spot: Spot) -> int | float | None:
        value = spot.value
        if self.nan and (value == "nan" or (isinstance(value, float) and math.isnan(value))):
            return math.nan
        if isinstance(value, str) and re.fullmatch(EXPONENT, value):
            value = float(value)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            return spot.problem(f"{shown(spot.value)} found, a number wanted{decimal_point(value)}")
        if not math.isfinite(value):
            return spot.problem(f"{value} found, a finite number wanted")
        return _within(self, spot, value)

    def schema(self) -> dict:
        number = {"type": "number", **_limits(self)}
        if not self.zero:
            number["not"] = {"const": 0}
        words = [{"const": "nan"}] if self.nan else []
        return {"anyOf": [number, {"type": "string", "pattern": f"^{EXPONENT}$"}, *words]}


@dataclass(frozen=True)
class Whole:
    """A whole number within [low, high]."""

    low: int | None = None
    high: int | None = None
    zero = True

    def read(self, spot: Spot) -> int | None:
        value = spot.value
        if isinstance(value, bool) or not isinstance(value, int):
            return spot.problem(f"{shown(value)} found, a whole number wanted")
        return _within(self, spot, value)

    def schema(self) -> dict:
        return {"type": "integer", **_limits(self)}


def _within(kind, spot: Spot, value):
    if kind.low == 0 and not kind.zero and value <= 0:
        return spot.problem(f"{value} found, a number above 0 wanted")
    if kind.low is not None and value < kind.low:
        return spot.problem(f"{value} is below {kind.low}")
    if kind.high is not None and value > kind.high:
        return spot.problem(f"{value} is above {kind.high}")
    if not kind.zero and value == 0:
        return spot.problem("0 cannot be used here")
    return value


def _limits(kind) -> dict:
    limits = {"minimum": kind.low, "maximum": kind.high}
    return {word: value for word, value in limits.items() if value is not None}


@dataclass(frozen=True)
class Choice:
    """One of a few words."""

    words: tuple[str, ...]

    def read(self, spot: Spot) -> str | None:
        if isinstance(spot.value, str) and spot.value in self.words:
            return spot.value
        return spot.problem(f"{shown(spot.value)} found, one of {', '.join(self.words)} wanted")

    def schema(self) -> dict:
        return {"enum": list(self.words)}


@dataclass(frozen=True)
class Either:
    """A word, or a value of another kind."""

    word: str
    kind: "Whole | Number | ListOf"

    def read(self, spot: Spot):
        if spot.value == self.word:
            return self.word
        if isinstance(spot.value, str):
            wanted = self.kind.wanted if isinstance(self.kind, ListOf) else "a number"
            return spot.problem(f"{shown(spot.value)} found, '{self.word}' or {wanted} wanted")
        return self.kind.read(spot)

    def schema(self) -> dict:
        return {"anyOf": [{"const": self.word}, self.kind.schema()]}


@dataclass(frozen=True)
class ListOf:
    """A list of one kind, of one value for each of `names` where there are any; gives a tuple."""

    kind: Text | Whole | Number
    names: tuple[str, ...] = ()

    @property
    def wanted(self) -> str:
        """What messages call it."""
        return f"a list [{', '.join(self.names)}]" if self.names else "a list"

    def read(self, spot: Spot) -> tuple | None:
        if not isinstance(spot.value, list):
            one = isinstance(spot.value, (str, int, float)) and not self.names
            hint = f": [{json.dumps(spot.value, ensure_ascii=False)}]" if one else ""
            return spot.problem(f"{shown(spot.value)} found, {self.wanted} wanted{hint}")
        if self.names and len(spot.value) != len(self.names):
            return spot.problem(f"a list of {len(spot.value)} found, {self.wanted} wanted")
        values = tuple(self.kind.read(spot.child(i)) for i in range(len(spot.value)))
        return values if None not in values else None

    def schema(self) -> dict:
        count = {"minItems": len(self.names), "maxItems": len(self.names)} if self.names else {}
        return {"type": "array", "items": self.kind.schema(), **count}


@dataclass(frozen=True)
class OneOrEach:
    """A list of numbers, or one that stands for each of them; gives a tuple."""

    each: ListOf

    def read(self, spot: Spot) -> tuple | None:
        if isinstance(spot.value, list):
            return self.each.read(spot)
        value = self.each.kind.read(spot)
        return None if value is None else (value,) * len(self.each.names)

    def schema(self) -> dict:
        return {"anyOf": [self.each.kind.schema(), self.each.schema()]}


@dataclass(frozen=True)
class MapOf:
    """Names with a value each; a name with nothing (~) is left out, so that a later file can remove it."""

    kind: object
    pattern: str
    wanted: str
    reserved: tuple[str, ...] = ()

    def read(self, spot: Spot) -> dict | None:
        if not isinstance(spot.value, dict):
            return spot.problem(f"{shown(spot.value)} found, names with a value each wanted")
        out = {}
        for name in spot.value:
            item, before = spot.child(name), len(spot.problems)
            if not isinstance(name, str):
                item.problem(f"the name is read as {shown(name)}; put it in quotes", of_key=True)
            elif not re.fullmatch(self.pattern, name):
                item.problem(f"{self.wanted} wanted as a name", of_key=True)
            elif name in self.reserved:
                item.problem("this name is taken by cogmill; choose another", of_key=True)
            if item.value is None:
                continue
            value = self.kind.read(item)
            if len(spot.problems) == before:
                out[name] = value
        return out

    def schema(self) -> dict:
        names = {"pattern": f"^({self.pattern})$"}
        if self.reserved:
            names["not"] = {"enum": list(self.reserved)}
        values = {"anyOf": [self.kind.schema(), {"type": "null"}]}
        return {"type": "object", "propertyNames": names, "additionalProperties": values}


@dataclass(frozen=True)
class Section:
    """A mapping with known keys, read into `cls`; `short` names the key that a bare text stands for.

    An optional method `check(self, spot)` of `cls` notes impossible combinations; it runs when each key is right.
    """

    cls: type
    short: str | None = None

    def read(self, spot: Spot):
        before = len(spot.problems)
        fields = keys_of(self.cls)
        if isinstance(spot.value, str) and self.short:
            value = {self.short: fields[self.short].metadata["kind"].read(spot)}
            found = {name: None if default_of(item) is MISSING else default_of(item) for name, item in fields.items()}
            out = self.cls(**(found | value))
        elif isinstance(spot.value, dict):
            for name in spot.value:
                if name not in fields:
                    spot.child(name).problem(f"unknown key{nearest(name, fields)}", of_key=True)
            out = self.cls(**{name: self._read_key(spot, item) for name, item in fields.items()})
        else:
            return spot.problem(f"{shown(spot.value)} found, keys and values wanted ({', '.join(fields)})")
        if len(spot.problems) == before and hasattr(out, "check"):
            out.check(spot)
        return out

    @staticmethod
    def _read_key(spot: Spot, item: dataclasses.Field):
        kind, default = item.metadata["kind"], default_of(item)
        if spot.value.get(item.name) is not None:
            return kind.read(spot.child(item.name))
        if default is MISSING:
            where = f"key '{spot.name}': " if spot.path else ""
            spot.problems.add(
                spot.files.place(spot.path, spot.value, of_key=True), f"{where}key '{item.name}' is missing"
            )
            return None
        return default

    def schema(self) -> dict:
        keys, required = {}, []
        for item in keys_of(self.cls).values():
            default, schema = default_of(item), item.metadata["kind"].schema()
            if default is MISSING:
                required.append(item.name)
            else:
                schema = {"anyOf": [schema, {"type": "null"}]}
                if not dataclasses.is_dataclass(default) and default is not None:
                    schema["default"] = default
            keys[item.name] = {"description": item.metadata["text"], **schema}
        out = {"type": "object", "properties": keys, "additionalProperties": False}
        if required:
            out["required"] = required
        if self.short:
            return {"anyOf": [keys[self.short] | {"type": "string"}, out]}
        return out


def read_section(cls: type, doc, files: YamlFiles, problems: Problems) -> tuple[object, Spot]:
    """Read a whole document into `cls`; (object or None, the spot of the document)."""
    spot = Spot(files, problems, doc)
    return Section(cls).read(spot), spot

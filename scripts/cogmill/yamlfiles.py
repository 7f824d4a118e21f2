"""YAML files with the place of every key, and the mistakes found in them, so that all come in one message."""

import difflib
import json
import re
from pathlib import Path

import yaml

from cogmill.errors import ConfigError

CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")  # line breaks and signs that nobody sees or types
DECIMAL_COMMA = re.compile(r"[-+]?[0-9]*,[0-9]+([eE][-+]?[0-9]+)?")
MOST_LINES = 200  # a disk that is not mounted makes every line of a sheet wrong


class Problems:
    """Mistakes of the user's files, collected until all have been looked for."""

    def __init__(self):
        self.lines: list[str] = []

    def __len__(self) -> int:
        return len(self.lines)

    def add(self, place: str, text: str) -> None:
        """Note a mistake; `place` is file:line:column."""
        line = f"{place}: {text}"
        if line not in self.lines[-MOST_LINES:]:
            self.lines.append(line)

    def stop(self) -> None:
        """Raise what was found.

        Raises
        ------
        ConfigError
            One line a mistake, after a line that counts them.
        """
        if not self.lines:
            return
        number = len(self.lines)
        head = f"{number} mistake{'s' if number > 1 else ''} found; nothing was started"
        more = [f"... and {number - MOST_LINES} more"] if number > MOST_LINES else []
        raise ConfigError("\n".join([head, *self.lines[:MOST_LINES], *more]))


def nearest(word, known, sure: float = 0.6) -> str:
    """` - did you mean 'x' or 'y'?` with the known words that are nearest, else all of them; capitals do not matter.

    Parameters
    ----------
    word
        What was found.
    known : iterable of str
    sure : float
        How alike words must be, 0 to 1, to be taken for the one that was meant.
    """
    known = sorted(known)
    matcher = difflib.SequenceMatcher(b=str(word).casefold())
    alike = {}
    for name in known:
        matcher.set_seq1(name.casefold())
        alike[name] = matcher.ratio()
    best = max(alike.values(), default=0)
    if best >= sure:
        *first, last = (f"'{name}'" for name in known if alike[name] == best)
        return f" - did you mean {', '.join(first)}{' or ' if first else ''}{last}?"
    return f"; known are {', '.join(known)}" if known else ""


def decimal_point(value) -> str:
    """Advice for a number that is written with a comma, else nothing."""
    return ": write a decimal point" if isinstance(value, str) and DECIMAL_COMMA.fullmatch(value.strip()) else ""


def read_text(path: str | Path, problems: Problems) -> str | None:
    """Text of a UTF-8 file (a byte order mark is dropped); None after noting why it cannot be read."""
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        problems.add(str(path), "not found" if isinstance(error, FileNotFoundError) else str(error.strerror or error))
        return None
    if data[:2] in (b"\xff\xfe", b"\xfe\xff"):
        problems.add(f"{path}:1:1", "is UTF-16 text; save it as UTF-8 (in a spreadsheet: 'CSV UTF-8')")
        return None
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        column = error.start - data.rfind(b"\n", 0, error.start)
        problems.add(f"{path}:{line}:{column}", f"byte 0x{data[error.start]:02x} is not UTF-8; save the file as UTF-8")
        return None


class YamlFiles:
    """YAML files that were merged in order, and where their keys stand.

    Syntax errors, duplicate keys and files that are not mappings are noted at once.

    Parameters
    ----------
    sources : sequence of (path, text)
        A later file's keys go over an earlier one's.
    problems : Problems
    elsewhere : str, optional
        Place of keys and values that are in no file; by default where a config without these files comes from.
    """

    def __init__(self, sources, problems: Problems, elsewhere: str | None = None):
        self.files: list[_File] = []
        sources = list(sources)
        for path, text in sources:
            node = _compose(str(path), text, problems)
            if node is not None:
                _find_duplicates(str(path), node, problems)
                self.files.append(_File(str(path), text, node, problems))
        if elsewhere is None:
            # without files, a workflow that imports this one gave the config; empty files say nothing of their keys
            elsewhere = "(--config)" if self.files else "(config or --config)" if sources else "(config)"
        self.elsewhere = elsewhere

    def place(self, path: tuple, value, of_key: bool = False) -> str:
        """file:line:column of the last file that has the key; `elsewhere` for a key or value from no file.

        Parameters
        ----------
        path : tuple
            Keys (and positions in lists) from the top.
        value
            What is in force there; another value in the file means that the command line replaced it.
        of_key : bool
            The key's own place instead of its value's.
        """
        for file in reversed(self.files):
            found = file.find(path)
            if found is None:
                continue
            key, node = found
            if not isinstance(value, dict) and repr(file.plain_at(path)) != repr(value):
                return self.elsewhere
            mark = (key if of_key and key is not None else node).start_mark
            return f"{file.path}:{mark.line + 1}:{mark.column + 1}"
        return self.elsewhere

    def place_in_text(self, path: tuple, value: str, position: int) -> str | None:
        """file:line:column of character `position` of a one-line text value; None where it cannot be said."""
        for file in reversed(self.files):
            found = file.find(path)
            if found is None or file.plain_at(path) != value:
                continue
            mark = found[1].start_mark
            column = mark.column + (found[1].style in ("'", '"'))
            line = file.text.splitlines()[mark.line]
            if line[column : column + len(value)] == value:
                return f"{file.path}:{mark.line + 1}:{column + position + 1}"
        return None


LARGEST = 100_000  # values in a file, aliases expanded


class _File:
    """One parsed file: its nodes (with marks) and its plain values."""

    def __init__(self, path: str, text: str, node: yaml.MappingNode, problems: Problems):
        self.path, self.text, self.node, self.plain = path, text, node, {}
        try:
            # this also flattens `<<` in the nodes, so that `find` sees merged keys
            self.plain = yaml.SafeLoader("").construct_document(node)
        except yaml.MarkedYAMLError as error:
            problems.add(_mark_place(path, error.problem_mark or error.context_mark), str(error.problem))
        except (ValueError, KeyError) as error:
            # a scalar that only looks like its type: 2020-13-45, !!int "abc"
            problems.add(f"{path}:1:1", f"a value cannot be read: {error}")

    def find(self, path: tuple):
        """(key node, value node) of a key, None where the file lacks it."""
        key, node = None, self.node
        for part in path:
            if isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
                key, node = None, node.value[part]
                continue
            pairs = node.value if isinstance(node, yaml.MappingNode) else ()
            match = [pair for pair in pairs if isinstance(pair[0], yaml.ScalarNode) and _is_key(pair[0], part)]
            if not match:
                return None
            key, node = match[-1]
        return key, node

    def plain_at(self, path: tuple):
        """Value of a key that `find` has found."""
        value = self.plain
        for part in path:
            value = value.get(part) if isinstance(value, dict) else value[part]
        return value


def _is_key(node: yaml.ScalarNode, part) -> bool:
    return node.value == part or (not isinstance(part, str) and yaml.SafeLoader("").construct_document(node) == part)


def _expanded(node: yaml.Node) -> int:
    """Number of values below a node, aliases counted as often as they are used; over `LARGEST` for a loop."""
    sizes: dict[int, int] = {}

    def size(node) -> int:
        if not isinstance(node, yaml.CollectionNode):
            return 1
        if id(node) not in sizes:
            sizes[id(node)] = LARGEST + 1  # until it is known: who comes back here in the meantime is in a loop
            parts = [part for pair in node.value for part in (pair if isinstance(pair, tuple) else (pair,))]
            sizes[id(node)] = 1 + sum(size(part) for part in parts)
        return sizes[id(node)]

    return size(node)


def _compose(path: str, text: str, problems: Problems) -> yaml.MappingNode | None:
    """Parse one file; an empty one has no keys and gives None."""
    if "\t" in text and _is_json(text):
        text = text.replace("\t", " ")  # Snakemake reads JSON too, and JSON may be indented with tabs
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        problems.add(_mark_place(path, error.problem_mark or error.context_mark), _yaml_words(error))
        return None
    except yaml.reader.ReaderError as error:
        before = text[: error.position]
        column = error.position - (before.rfind("\n") + 1) + 1
        problems.add(f"{path}:{before.count(chr(10)) + 1}:{column}", f"{error.reason}: {chr(error.character)!r}")
        return None
    except RecursionError:
        problems.add(f"{path}:1:1", "is nested too deeply")
        return None
    if node is None or (isinstance(node, yaml.ScalarNode) and node.tag == "tag:yaml.org,2002:null"):
        return None
    if _expanded(node) > LARGEST:
        problems.add(f"{path}:1:1", f"its aliases (*name) repeat too much, or themselves: over {LARGEST} values")
        return None
    if not isinstance(node, yaml.MappingNode):
        what = "a list" if isinstance(node, yaml.SequenceNode) else "a single value"
        problems.add(_mark_place(path, node.start_mark), f"the file is {what}; keys and values (key: value) are wanted")
        return None
    return node


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def _yaml_words(error: yaml.MarkedYAMLError) -> str:
    words = str(error.problem or error.context)
    if "'\\t'" in words:
        return "a tab; YAML is indented with spaces only"
    if words.startswith("mapping values are not allowed"):
        words += ": check the indentation and quotes"
    return f"not YAML: {words}" + (f" ({error.context})" if error.context and error.problem else "")


def _mark_place(path: str, mark) -> str:
    return f"{path}:{mark.line + 1}:{mark.column + 1}" if mark else path


def _find_duplicates(path: str, node: yaml.Node, problems: Problems) -> None:
    """Note keys that stand twice in one mapping: YAML parsers silently keep the last one."""
    todo, seen = [node], set()
    while todo:
        node = todo.pop()
        if id(node) in seen or isinstance(node, yaml.ScalarNode):
            continue
        seen.add(id(node))
        if isinstance(node, yaml.SequenceNode):
            todo += node.value
            continue
        lines: dict = {}
        for key, value in node.value:
            todo.append(value)
            if not isinstance(key, yaml.ScalarNode):
                continue
            name, line = (key.tag, key.value), key.start_mark.line + 1
            if name in lines:
                text = f"key '{key.value}' stands in line {lines[name]} already; keep one"
                problems.add(_mark_place(path, key.start_mark), text)
            lines.setdefault(name, line)

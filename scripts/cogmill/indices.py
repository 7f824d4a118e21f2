"""Formulas of products: text -> `Expression`, through a parser that knows only arithmetic.

Names, numbers, `+ - * / **`, unary minus and parentheses; precedence and associativity are Python's. Nothing else is
ever looked at, so that a formula from a config file cannot call, import or read anything.
"""

import keyword
import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass

from cogmill.errors import FormulaError

MAX_CHARS = 10_000
MAX_NESTING = 100  # parentheses, signs and powers inside each other
MAX_DEPTH = 200  # operations that wait for each other: keeps every recursive walk of the tree short
MAX_EXPONENT = 64

_TOKEN = re.compile(
    r"(?P<number>(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)"
    r"|(?P<name>[A-Za-z_][A-Za-z0-9_]*)"
    r"|(?P<op>\*\*|[-+*/()])"
)
_SPACE = " \t\r\n"
_BINARY = {"+": 1, "-": 1, "*": 2, "/": 2, "**": 4}
_NEG = 3  # binds tighter than * and looser than **
_ATOM = 5
_KNOWN = "only band names, numbers, + - * / ** and ( ) are"
_HINTS = {
    "^": "write ** for a power",
    "%": "there is no remainder",
    "//": "there is no floor division",
    ",": "write a decimal point, not a comma; functions are not known",
    ".": "attributes are not known; a number has a digit beside its point",
    "=": "comparisons and assignments are not known",
    "<": "comparisons are not known",
    ">": "comparisons are not known",
    "[": "subscripts are not known; name the band",
    "\u2212": "this is a typographic minus; write -",
    "\u2013": "this is a dash; write -",
    "\u00d7": "write * for a product",
    "\u00b7": "write * for a product",
    "\u00f7": "write / for a quotient",
}


@dataclass(frozen=True)
class Expression:
    """A parsed formula.

    Parameters
    ----------
    text : str
        As the user wrote it.
    names : tuple of str
        Band names in it, sorted, each once.
    canonical : str
        Without spaces and needless parentheses, numbers in one spelling: formulas of the same pixels, up to
        the order of operations, have the same one. It is what keys are made of, and parses to the same tree.
    node : tuple
        ("num", float) | ("name", str) | ("neg", node) | ("+" | "-" | "*" | "/" | "**", node, node).
    """

    text: str
    names: tuple[str, ...]
    canonical: str
    node: tuple

    def renamed(self, names: Mapping[str, str]) -> "Expression":
        """The same formula over other names; names that the mapping lacks stay."""
        node = _renamed(self.node, names)
        found = tuple(sorted({names.get(name, name) for name in self.names}))
        text = _canonical(node)[0]
        return Expression(text, found, text, node)


def _renamed(node: tuple, names: Mapping[str, str]) -> tuple:
    if node[0] == "name":
        return "name", names.get(node[1], node[1])
    return node[:1] + tuple(_renamed(part, names) if isinstance(part, tuple) else part for part in node[1:])


@dataclass(frozen=True)
class _Token:
    kind: str  # "number", "name", "op", "end"
    text: str
    position: int


def parse_formula(text: str) -> Expression:
    """Parse a formula.

    Parameters
    ----------
    text : str
        At most 10,000 characters, 100 levels of nesting and 200 operations that depend on each other.

    Returns
    -------
    Expression

    Raises
    ------
    FormulaError
        For anything but names, numbers (within float32), + - * / **, unary minus and parentheses; for a
        literal exponent beyond +-64; for a formula that names no band. `position` is the 0-based character.
    """
    if not isinstance(text, str):
        raise FormulaError(f"a formula is text, not {type(text).__name__} ({text!r:.60}); put it in quotes", 0)
    if len(text) > MAX_CHARS:
        raise FormulaError(f"formula has {len(text)} characters; at most {MAX_CHARS} are read", MAX_CHARS)
    parser = _Parser(text)
    node = parser.whole()
    if not parser.names:
        raise FormulaError(f"formula '{_short(text)}' names no band", 0)
    return Expression(text, tuple(sorted(parser.names)), _canonical(node)[0], node)


def literal_exponent(node: tuple) -> float | None:
    """Value of an exponent that is a number with any signs before it; None where it depends on a band."""
    sign = 1.0
    while node[0] == "neg":
        sign, node = -sign, node[1]
    return sign * node[1] if node[0] == "num" else None


def _short(text: str) -> str:
    return text if len(text) <= 60 else text[:57] + "..."


def _tokens(text: str) -> list[_Token]:
    found, at = [], 0
    while at < len(text):
        if text[at] in _SPACE:
            at += 1
            continue
        match = _TOKEN.match(text, at)
        if not match or text.startswith("//", at):
            raise _unknown(text, at)
        token = _Token(match.lastgroup, match.group(), at)
        at = match.end()
        if token.kind == "number" and at < len(text) and re.match(r"[A-Za-z0-9_.]", text[at]):
            raise FormulaError(f"number '{token.text}' runs into '{text[at]}'; write * for a product", at)
        if token.kind == "name" and keyword.iskeyword(token.text):
            raise FormulaError(f"'{token.text}' is not known: {_KNOWN}", token.position)
        found.append(token)
    return [*found, _Token("end", "", len(text))]


def _unknown(text: str, at: int) -> FormulaError:
    char = "//" if text.startswith("//", at) else text[at]
    hint = _HINTS.get(char, _KNOWN)
    shown = char if char.isprintable() else f"\\x{ord(char):02x}"
    return FormulaError(f"'{shown}' cannot stand in a formula: {hint}", at)


def _float32_literal(token: _Token) -> float:
    """A literal's value, refused where float32, which the kernels compute in, makes infinity or 0 of it."""
    value = float(token.text)
    try:
        stored = struct.unpack("<f", struct.pack("<f", value))[0]
    except OverflowError:
        stored = float("inf")
    if stored == float("inf"):
        raise FormulaError(f"number {token.text} is beyond float32 (3.4e38)", token.position)
    if not stored and re.search("[1-9]", re.split("[eE]", token.text)[0]):
        raise FormulaError(f"number {token.text} is 0 in float32; the smallest is 1.4e-45", token.position)
    return value


class _Parser:
    """Precedence climbing: two frames for a level of nesting, and the nesting is limited."""

    def __init__(self, text: str):
        self.text = text
        self.tokens = _tokens(text)
        self.next = 0
        self.nesting = 0
        self.names: set[str] = set()

    def whole(self) -> tuple:
        if self.tokens[0].kind == "end":
            raise FormulaError("formula is empty", 0)
        node, _ = self.expression(1)
        token = self.tokens[self.next]
        if token.kind != "end":
            what = "')' has no '('" if token.text == ")" else f"an operator is missing before '{token.text}'"
            if token.text == "(":
                what = "functions are not known, and a product needs its *; an operator is missing before '('"
            raise FormulaError(what, token.position)
        return node

    def take(self) -> _Token:
        token = self.tokens[self.next]
        self.next += token.kind != "end"
        return token

    def expression(self, weakest: int) -> tuple[tuple, int]:
        """Node made of operators that bind at least as tight as `weakest`, and its depth in operations."""
        left, depth = self.operand()
        while (binding := _BINARY.get(self.tokens[self.next].text, 0)) >= weakest:
            token = self.take()
            # ** groups from the right, and a sign may stand at its right: 2 ** -x
            right, right_depth = self.nested(token, _NEG if token.text == "**" else binding + 1)
            if token.text == "**":
                self.check_exponent(right, token)
            left, depth = (token.text, left, right), 1 + max(depth, right_depth)
            if depth > MAX_DEPTH:
                raise FormulaError(f"more than {MAX_DEPTH} operations wait for each other here", token.position)
        return left, depth

    def nested(self, token: _Token, weakest: int) -> tuple[tuple, int]:
        self.nesting += 1
        if self.nesting > MAX_NESTING:
            raise FormulaError(f"more than {MAX_NESTING} levels of nesting", token.position)
        found = self.expression(weakest)
        self.nesting -= 1
        return found

    def operand(self) -> tuple[tuple, int]:
        token = self.take()
        if token.kind == "number":
            return ("num", _float32_literal(token)), 0
        if token.kind == "name":
            self.names.add(token.text)
            return ("name", token.text), 0
        if token.text == "-":
            node, depth = self.nested(token, _NEG)
            return ("neg", node), depth + 1
        if token.text == "(":
            found = self.nested(token, 1)
            closing = self.take()
            if closing.text != ")":
                raise FormulaError(self.unclosed(token, closing), closing.position)
            return found
        if token.kind == "end":
            raise FormulaError("formula ends where a band name, a number or '(' is wanted", token.position)
        raise FormulaError(f"a band name, a number or '(' is wanted, not '{token.text}'", token.position)

    @staticmethod
    def unclosed(opening: _Token, found: _Token) -> str:
        if found.kind == "end":
            return f"')' is missing for the '(' at character {opening.position + 1}"
        return f"an operator or ')' is missing before '{found.text}'"

    @staticmethod
    def check_exponent(node: tuple, token: _Token) -> None:
        exponent = literal_exponent(node)
        if exponent is not None and abs(exponent) > MAX_EXPONENT:
            raise FormulaError(f"exponent {exponent:g} is beyond +-{MAX_EXPONENT}", token.position + 2)


def _canonical(node: tuple) -> tuple[str, int]:
    """Spelling of a node with no needless parentheses, and how tight it binds."""
    if node[0] == "num":
        return repr(node[1]), _ATOM
    if node[0] == "name":
        return node[1], _ATOM
    if node[0] == "neg":
        return "-" + _wrapped(node[1], _NEG), _NEG
    operator, left, right = node
    binding = _BINARY[operator]
    if operator == "**":
        return f"{_wrapped(left, binding + 1)}**{_wrapped(right, _NEG)}", binding
    # a + (b + c) keeps its parentheses: float sums depend on the order
    return f"{_wrapped(left, binding)}{operator}{_wrapped(right, binding + 1)}", binding


def _wrapped(node: tuple, weakest: int) -> str:
    text, binding = _canonical(node)
    return text if binding >= weakest else f"({text})"

"""Formulas: what is read, what is refused and where."""

import re
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cogmill.errors import ConfigError, FormulaError
from cogmill.indices import MAX_CHARS, parse_formula

BANDS = {"a": 3.0, "b": -7.25, "c": 0.5}


def value(node, bands=BANDS):
    """The tree's value in float64, by recursion of its own."""
    kind = node[0]
    if kind == "num":
        return np.float64(node[1])
    if kind == "name":
        return np.float64(bands[node[1]])
    if kind == "neg":
        return -value(node[1], bands)
    left, right = value(node[1], bands), value(node[2], bands)
    with np.errstate(all="ignore"):
        return {
            "+": lambda: left + right,
            "-": lambda: left - right,
            "*": lambda: left * right,
            "/": lambda: left / right,
            "**": lambda: left**right,
        }[kind]()


def refused(text) -> FormulaError:
    with pytest.raises(FormulaError) as caught:
        parse_formula(text)
    return caught.value


def test_an_expression_tells_names_text_and_tree():
    expression = parse_formula("(nir - red) / (nir + red)")
    assert expression.text == "(nir - red) / (nir + red)"
    assert expression.names == ("nir", "red")
    assert expression.canonical == "(nir-red)/(nir+red)"
    nir, red = ("name", "nir"), ("name", "red")
    assert expression.node == ("/", ("-", nir, red), ("+", nir, red))
    assert hash(expression) == hash(parse_formula("(nir - red) / (nir + red)"))


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("((a))", "a"),
        ("a+(b+c)", "a+(b+c)"),
        ("(a+b)+c", "a+b+c"),
        ("a-(b-c)", "a-(b-c)"),
        ("a*(b/c)", "a*(b/c)"),
        ("-(a**2)", "-a**2.0"),
        ("(-a)**2", "(-a)**2.0"),
        ("a**(b**c)", "a**b**c"),
        ("(a**b)**c", "(a**b)**c"),
        ("a**-(1)", "a**-1.0"),
        ("a**(-b)", "a**-b"),
        ("a*(-b)", "a*-b"),
        ("-(a*b)", "-(a*b)"),
        ("--a", "--a"),
        ("a - -1", "a--1.0"),
        ("1.50*a\n + .5 ", "1.5*a+0.5"),
        ("1e-05*a", "1e-05*a"),
        ("a*1.", "a*1.0"),
        ("\ta\r\n", "a"),
    ],
)
def test_canonical_form(text, canonical):
    assert parse_formula(text).canonical == canonical
    assert parse_formula(canonical).node == parse_formula(text).node


@pytest.mark.parametrize(
    "text",
    [
        "a+b*c", "a*b+c", "a-b-c", "a/b/c", "a/b*c", "a**b**c", "2**c**2*a", "-a**2", "(-a)**2", "a**-2", "2**-a",
        "-a*b", "a*-b", "a--b", "a-(-b)", "-(-a)", "--a", "a**-b**c", "-a**-c**2", "a*b**2/c",
        "a**2**-1", "1-a/-b**2-3", "((a+b)*(a-b))**2/(2*c)", "1/-a", "-1/-a/-b",
    ],
)  # fmt: skip
def test_precedence_is_pythons(text):
    with np.errstate(all="ignore"):
        wanted = eval(text, {"__builtins__": {}}, {name: np.float64(v) for name, v in BANDS.items()})
    assert np.array_equal(value(parse_formula(text).node), wanted, equal_nan=True)


def formulas():
    leaf = st.sampled_from(["a", "b", "c", "2", "0.5", "1e-3", "3."])
    return st.recursive(
        leaf,
        lambda inner: st.one_of(
            st.tuples(inner, st.sampled_from(["+", "-", "*", "/", " - ", " * "]), inner).map("".join),
            inner.map(lambda x: f"-{x}"),
            inner.map(lambda x: f"({x})"),
            st.tuples(inner, st.sampled_from(["2", "-3", "0.5", "c"])).map(lambda x: f"({x[0]})**{x[1]}"),
        ),
        max_leaves=15,
    )


@given(formulas())
def test_any_formula_means_what_python_means(text):
    if not set(text) & set("abc"):
        text = f"a+{text}"
    expression = parse_formula(text)
    with np.errstate(all="ignore"):
        # numbers as numpy's: Python's own would raise at 1/0
        source = "".join(f"n({part})" if part[0] in "0123456789" else part for part in _parts(text))
        wanted = eval(source, {"__builtins__": {}, "n": np.float64}, {k: np.float64(v) for k, v in BANDS.items()})
    assert np.array_equal(value(expression.node), wanted, equal_nan=True)
    again = parse_formula(expression.canonical)
    assert again.node == expression.node
    assert again.canonical == expression.canonical


def _parts(text):
    return re.findall(r"[0-9.]+(?:e-?[0-9]+)?|.", text)


@pytest.mark.parametrize(
    ("text", "position", "words"),
    [
        ("", 0, "empty"),
        ("  \n", 0, "empty"),
        ("nir.red", 3, "attributes"),
        ("nir.__class__", 3, "attributes"),
        ("sqrt(nir)", 4, "functions"),
        ("__import__('os')", 11, "cannot stand"),
        ("nir[0]", 3, "subscripts"),
        ("'nir'", 0, "cannot stand"),
        ('nir + "red"', 6, "cannot stand"),
        ("lambda: nir", 0, "'lambda' is not known"),
        ("nir if red", 4, "'if' is not known"),
        ("nir and red", 4, "'and' is not known"),
        ("nir < red", 4, "comparisons"),
        ("nir == red", 4, "comparisons"),
        ("a := nir", 2, "cannot stand"),
        ("nir, red", 3, "decimal point"),
        ("nir * 0,5", 7, "decimal point"),
        ("nir // red", 4, "floor division"),
        ("nir % red", 4, "remainder"),
        ("nir ^ 2", 4, "write **"),
        ("nir ** ", 7, "ends"),
        ("nir ** * red", 7, "not '*'"),
        ("nir *** red", 6, "not '*'"),
        ("+nir", 0, "not '+'"),
        ("nir +", 5, "ends"),
        ("(nir - red", 10, "')' is missing for the '(' at character 1"),
        ("(nir red)", 5, "before 'red'"),
        ("nir - red)", 9, "no '('"),
        ("()", 1, "not ')'"),
        ("nir red", 4, "missing before 'red'"),
        ("2 nir", 2, "missing before 'nir'"),
        ("2nir", 1, "runs into 'n'"),
        ("0x10 * nir", 1, "runs into 'x'"),
        ("1_000 * nir", 1, "runs into '_'"),
        ("1.2.3 * nir", 3, "runs into '.'"),
        ("1e * nir", 1, "runs into 'e'"),
        ("1j * nir", 1, "runs into 'j'"),
        (". * nir", 0, "a digit"),
        ("n\u0131r", 1, "cannot stand"),
        ("nir * \u0663", 6, "cannot stand"),
        ("nir * \uff12", 6, "cannot stand"),
        ("nir\u00a0- red", 3, "\\xa0"),
        ("nir \u2212 red", 4, "typographic minus"),
        ("nir \u00d7 red", 4, "write *"),
        ("nir\0", 3, "\\x00"),
        ("nir # red", 4, "cannot stand"),
        ("nir; red", 3, "cannot stand"),
        ("nir\\", 3, "cannot stand"),
        ("nir ** 65", 6, "beyond +-64"),
        ("nir ** -64.5", 6, "beyond +-64"),
        ("nir ** -(100)", 6, "beyond +-64"),
        ("nir ** 1e30", 6, "beyond +-64"),
        ("nir * 1e39", 6, "beyond float32"),
        ("nir * 1e999", 6, "beyond float32"),
        ("nir / 1e-50", 6, "0 in float32"),
        ("nir / 1e-999", 6, "0 in float32"),
        ("1 + 2", 0, "names no band"),
    ],
)  # fmt: skip
def test_refused_with_the_position(text, position, words):
    error = refused(text)
    assert words in str(error)
    assert error.position == position
    assert isinstance(error, ConfigError)
    assert error.reason == "formula"


@pytest.mark.parametrize("given", [None, 1, 0.5, True, ["nir"], {"nir": 1}, b"nir"])
def test_a_formula_is_text(given):
    assert "in quotes" in str(refused(given))


@pytest.mark.parametrize(
    ("text", "position"),
    [
        ("(" * 5000 + "nir" + ")" * 4000, 100),
        ("-" * 9000 + "nir", 100),
        ("nir**" * 1500 + "nir", 3 + 5 * 100),
        ("(" * 9999, 100),
    ],
)
def test_huge_nesting_is_an_error_not_a_crash(text, position):
    error = refused(text)
    assert "nesting" in str(error)
    assert error.position == position


def test_huge_sums_are_an_error_not_a_crash():
    error = refused("+".join(["a"] * 3000))
    assert "operations" in str(error)
    assert error.position == 1 + 2 * 200


def test_long_formulas():
    assert refused("a" + " " * MAX_CHARS).position == MAX_CHARS
    assert parse_formula("a" + " " * (MAX_CHARS - 1)).names == ("a",)
    assert len(parse_formula("+".join(f"b{i}" for i in range(200))).names) == 200


def test_deepest_formulas_are_read_on_half_a_stack():
    # Snakemake and pytest stand on deep stacks already
    code = """
import sys
from cogmill.indices import parse_formula
def deeper(n):
    if n:
        return deeper(n - 1)
    parse_formula("(" * 100 + "nir" + ")" * 100)
    parse_formula("+".join(["nir"] * 201))
deeper(sys.getrecursionlimit() // 2)
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_exponents_at_the_limit():
    for text in ("a**64", "a**-64", "a**b", "a**(b*100)", "a**2**3"):
        parse_formula(text)


def test_imports_the_standard_library_alone():
    # Snakemake's own environment has no numpy
    code = """
import sys
import cogmill.indices, cogmill.masks
assert not {"numpy", "numba", "rasterio"} & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", code], check=True)

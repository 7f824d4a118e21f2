"""Expressions -> steps -> source lines.

The walk over the tree (`steps`) is common to all kernels, so that CPU and GPU do the same operations in the same
order; a dialect only spells a step. Source is made of names given here (`x0`, `t0`, ...) and numbers: nothing that a
user wrote gets into it.
"""

import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass

from cogmill.indices import MAX_EXPONENT, Expression, literal_exponent

_OPERATIONS = {"+": "add", "-": "sub", "*": "mul", "/": "div"}


@dataclass(frozen=True)
class Step:
    """One float32 operation: `target` = `operation`(*`operands`).

    `operation` is add, sub, mul, div, neg, sqrt, or pow (in float64, rounded once). An operand is the name of a
    variable, or a float that float32 holds exactly.
    """

    target: str
    operation: str
    operands: tuple[str | float, ...]


def steps(expression: Expression, variables: Mapping[str, str]) -> tuple[list[Step], str | float]:
    """Operations of an expression, in the order of the formula.

    Parameters
    ----------
    expression : Expression
    variables : mapping
        Band name -> variable that holds its float32 value.

    Returns
    -------
    steps : list of Step
    result : str or float
        Variable (or number) that holds the value after the last step.
    """
    walk = _Walk(variables)
    result = walk.node(expression.node)
    return walk.steps, result


def float32_literal(value: float) -> float:
    """The float32 nearest to `value`, as a Python float."""
    return struct.unpack("<f", struct.pack("<f", value))[0]


class _Walk:
    def __init__(self, variables):
        self.variables = variables
        self.steps: list[Step] = []

    def add(self, operation: str, *operands) -> str:
        target = f"t{len(self.steps)}"
        self.steps.append(Step(target, operation, operands))
        return target

    def node(self, node):
        kind = node[0]
        if kind == "num":
            return float32_literal(node[1])
        if kind == "name":
            return self.variables[node[1]]
        if kind == "neg":
            return self.add("neg", self.node(node[1]))
        if kind == "**":
            return self.power(node[1], node[2])
        left, right = self.node(node[1]), self.node(node[2])
        return self.add(_OPERATIONS[kind], left, right)

    def power(self, base_node, exponent_node):
        base, exponent = self.node(base_node), literal_exponent(exponent_node)
        if exponent == 0.5:
            return self.add("sqrt", base)
        if exponent is not None and exponent.is_integer() and abs(exponent) <= MAX_EXPONENT:
            return self.integer_power(base, int(exponent))
        return self.add("pow", base, self.node(exponent_node))

    def integer_power(self, base, exponent: int):
        """Square-and-multiply from the highest bit; x**-n is 1 / x**n, x**0 is 1.

        x**2 = x*x, x**3 = (x*x)*x, x**5 = ((x*x)*(x*x))*x: a chain that is the same on every device, where a
        library's powf is not.
        """
        if exponent == 0:
            return 1.0
        result = base
        for bit in bin(abs(exponent))[3:]:
            result = self.add("mul", result, result)
            if bit == "1":
                result = self.add("mul", result, base)
        return self.add("div", 1.0, result) if exponent < 0 else result


_PYTHON = {
    "add": "{} + {}",
    "sub": "{} - {}",
    "mul": "{} * {}",
    "div": "{} / {}",
    "neg": "-{}",
    "sqrt": "np.sqrt({})",
    "pow": "f4(f8({}) ** f8({}))",
}


def python_lines(sequence: list[Step]) -> list[str]:
    """Steps as lines of Python for Numba, with `np`, `f4` = float32 and `f8` = float64 at hand."""
    return [f"{s.target} = {_PYTHON[s.operation].format(*map(python_operand, s.operands))}" for s in sequence]


def python_operand(operand: str | float) -> str:
    """A variable as it is; a number so that Numba takes it for a float32."""
    if isinstance(operand, str):
        return operand
    if not math.isfinite(operand):
        raise ValueError(f"literal {operand} is not a finite float32")
    return f"f4({operand!r})"

"""Reads the project's own sources: rules, scripts, their imports, and the environments."""

import ast
import re
import sys
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = ROOT / "scripts"
PACKAGE = SCRIPTS / "cogmill"
RULE_FILES = [ROOT / "workflow/Snakefile", *sorted((ROOT / "workflow/rules").glob("*.smk"))]

# conda name: (import name, pip name); None where PyPI has nothing to import for it
CONDA_NAMES = {
    "python": None,
    "numpy": ("numpy", "numpy"),
    "numba": ("numba", "numba"),
    "rasterio": ("rasterio", "rasterio"),
    "pyproj": ("pyproj", "pyproj"),
    "zstandard": ("zstandard", "zstandard"),
    "python-xxhash": ("xxhash", "xxhash"),
    "pyyaml": ("yaml", "pyyaml"),
    "matplotlib-base": ("matplotlib", "matplotlib"),
    "pillow": ("PIL", "pillow"),
    "libgdal-core": None,  # a C++ library; rasterio's wheel brings its own
    "cupy": None,  # needs a CUDA driver to be of use, and no kernel asks for it where there is none
    "libnvcomp": None,  # a CUDA library
}


def rules() -> dict[str, tuple[str, str]]:
    """{rule: (rule file's name, its text)}; a rule taken over by `use rule` has the text of its changes only."""
    found = {}
    for path in RULE_FILES:
        parts = re.split(r"^(?=(?:use )?rule )", path.read_text(encoding="utf-8"), flags=re.M)
        for part in parts[1:]:
            name = re.match(r"rule (\w+):|use rule \w+ as (\w+) with:", part)
            found[name[1] or name[2]] = (path.name, part)
    return found


def rule_scripts() -> dict[str, Path]:
    """{rule: its script}, of rules that have one of their own."""
    scripts = {rule: re.search(r'script:\s*"([^"]+)"', text) for rule, (_, text) in rules().items()}
    return {rule: (ROOT / "workflow/rules" / found[1]).resolve() for rule, found in scripts.items() if found}


def rule_envs() -> dict[str, Path]:
    """{rule: its environment file}."""
    envs = {rule: re.search(r'conda:\s*"([^"]+)"', text) for rule, (_, text) in rules().items()}
    return {rule: (ROOT / "workflow/rules" / found[1]).resolve() for rule, found in envs.items() if found}


def env_packages(path: Path) -> dict[str, str]:
    """{conda name: version wanted} of an environment file."""
    doc = yaml.safe_load(path.read_text(encoding="utf-8"))
    return {name: spec for name, _, spec in (entry.partition(" ") for entry in doc["dependencies"])}


def library_list() -> list[str]:
    """The literal list of library files in workflow/rules/common.smk."""
    tree = ast.parse((ROOT / "workflow/rules/common.smk").read_text(encoding="utf-8"))
    for node in tree.body:
        if isinstance(node, ast.Assign) and node.targets[0].id == "LIBRARY_FILES":
            return ast.literal_eval(node.value)
    raise LookupError("common.smk sets no LIBRARY_FILES")


def modules_of(script: Path) -> dict[str, ast.Module]:
    """{path: syntax tree} of a script and of all of cogmill that it can come to import, inside functions too."""
    found, todo = {}, [script]
    while todo:
        path = todo.pop()
        if str(path) in found:
            continue
        found[str(path)] = tree = ast.parse(path.read_text(encoding="utf-8"))
        todo += [file for name in imports(tree) for file in _files(name)]
    return found


def imports(tree: ast.Module) -> set[str]:
    """Dotted names that a module imports; `from a import b` gives a and a.b."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return names


def third_party(trees: dict[str, ast.Module]) -> set[str]:
    """Top-level names of the packages that modules import, without the standard library and cogmill."""
    names = {name.partition(".")[0] for tree in trees.values() for name in imports(tree)}
    return names - set(sys.stdlib_module_names) - {"cogmill", "snakemake"}


def _files(name: str) -> list[Path]:
    """Files of cogmill that importing a dotted name executes."""
    parts = name.split(".")
    if parts[0] != "cogmill":
        return []
    steps = [SCRIPTS.joinpath(*parts[:n]) for n in range(1, len(parts) + 1)]
    return [file for step in steps for file in (step / "__init__.py", step.with_suffix(".py")) if file.is_file()]

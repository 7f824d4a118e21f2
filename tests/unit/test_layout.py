"""The promises of the layout: where things are, what imports what, and what `compute` must never do."""

import ast
import json
import re
import subprocess
import sys

import pytest
from sources import (
    CONDA_NAMES,
    PACKAGE,
    ROOT,
    SCRIPTS,
    env_packages,
    imports,
    library_list,
    modules_of,
    rule_envs,
    rule_scripts,
    rules,
    third_party,
)

# a rule and the rules that use its script
PHASES = {
    "to_cog": "ingest.smk",
    "warp_grid": "grid.smk",
    "compute": "compute.smk",
    "report": "report.smk",
    "verdict": "report.smk",
}
STARTS_A_PROGRAM = re.compile(r"os\.(system|popen|exec\w*|spawn\w*|posix_spawn\w*)$")
GDAL_WARP = ("rasterio.warp", "rasterio.vrt", "rasterio._warp")


def test_library_files_are_those_of_the_tree():
    tree = sorted(
        path.relative_to(PACKAGE).as_posix()
        for path in PACKAGE.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    )
    wanted = "".join(f"    {json.dumps(name)},\n" for name in tree)
    assert library_list() == tree, f"workflow/rules/common.smk needs:\nLIBRARY_FILES = [\n{wanted}]"


def test_each_script_has_its_rules_name():
    assert {rule: path.name for rule, path in rule_scripts().items()} == {rule: f"{rule}.py" for rule in PHASES}
    assert {rule: rules()[rule][0] for rule in PHASES} == PHASES


def test_scripts_folder_holds_rule_scripts_and_the_profile_installer():
    assert {path.stem for path in SCRIPTS.glob("*.py")} == {*PHASES, "install_profiles"}


@pytest.mark.parametrize("rule", PHASES)
def test_script_is_a_thin_adaptor(rule):
    tree = ast.parse((SCRIPTS / f"{rule}.py").read_text(encoding="utf-8"))
    assert ast.get_docstring(tree)
    body = tree.body[1:]
    assert all(isinstance(node, ast.ImportFrom) for node in body[:-1])
    main = body[-1]
    assert isinstance(main, ast.If) and len(main.body) == 2  # start the log, call one function
    call = main.body[1].value
    assert not call.args and call.keywords
    assert not any(node.module == "__future__" for node in body[:-1])  # Snakemake writes lines before it


@pytest.mark.parametrize("rule", [*PHASES, "repair", "product"])
def test_rule_names_log_message_and_outputs(rule):
    text = rules()[rule][1]
    for directive in ("log", "message", "output"):
        assert re.search(rf"^    {directive}:", text, flags=re.M), directive
    assert re.search(r"output:\n        \w+=", text)
    assert "shadow:" not in text and "update(" not in text


@pytest.mark.parametrize("env", sorted((ROOT / "envs").glob("*.yaml")), ids=lambda path: path.stem)
def test_environment_lists_what_its_rules_import(env):
    listed = {CONDA_NAMES[name][0] for name in env_packages(env) if CONDA_NAMES[name]}
    rules = [rule for rule, of_rule in rule_envs().items() if of_rule == env and rule in PHASES]
    imported = set().union(*(third_party(modules_of(SCRIPTS / f"{rule}.py")) for rule in rules))
    # nothing more, so that no environment outgrows its rules; YAML is for the command line, which reads the config
    assert imported | {"yaml"} == listed


def test_every_environment_has_a_rule():
    assert set(rule_envs().values()) == set((ROOT / "envs").glob("*.yaml"))


def test_only_the_gdal_engine_reaches_gdals_warp():
    trees = {path: ast.parse(path.read_text(encoding="utf-8")) for path in PACKAGE.rglob("*.py")}
    reaching = {path.name for path, tree in trees.items() if any(name.startswith(GDAL_WARP) for name in imports(tree))}
    assert reaching == {"gdalwarp.py"}
    # others load it when a scene needs it, not before
    for path, tree in trees.items():
        early = [node.module for node in tree.body if isinstance(node, ast.ImportFrom)]
        assert "cogmill.gdalwarp" not in early, path


def test_compute_starts_no_program():
    for path, tree in modules_of(SCRIPTS / "compute.py").items():
        assert not imports(tree) & {"subprocess", "pty", "os.system", "os.popen"}, path
        calls = [ast.unparse(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)]
        assert not [call for call in calls if STARTS_A_PROGRAM.search(call)], path


def test_reading_a_campaign_needs_only_snakemakes_environment():
    """Snakemake parses the workflow in an environment that may hold nothing but Snakemake."""
    code = f"import sys; sys.path.insert(0, {str(SCRIPTS)!r}); import cogmill.campaign, cogmill.status; "
    code += "print(*sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True).stdout.split()
    heavy = {entry[0] for entry in CONDA_NAMES.values() if entry} - {"yaml"}
    assert not heavy & set(found)


def test_no_tracked_file_is_large():
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, check=True, text=True).stdout
    paths = [ROOT / name for name in found.split("\0") if name]
    limit = 300_000
    assert paths
    assert not [str(path) for path in paths if path.is_file() and path.stat().st_size > limit]

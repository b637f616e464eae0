"""The shape of the project: import layers, sizes, names, versions. Boundaries only, never calls inside a function."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SRC = ROOT / "src" / "slipstream"
FILES = sorted(SRC.rglob("*.py"))

LAYER = {
    "types": 0,
    "params": 0,
    "devices": 0,
    "sampling": 1,
    "verify": 1,
    "nets": 1,
    "kernels": 1,
    "targets": 2,
    "drafters": 2,
    "control": 2,
    "checkpoints": 2,
    "engine": 3,
    "text": 3,
    "testing": 4,
    "config": 4,
    "machine": 4,
    "learned": 4,
    "models": 4,
    "profiles": 4,
    "decoders": 4,
    "build": 4,
    "opened": 4,
    "at_hand": 4,
    "plugins": 4,
    "specs": 4,
    "llm": 5,
    "measure": 6,
    "cli": 7,
}
MAY_NOT = {  # narrower than the layers
    "verify": {"nets", "sampling"},
    "nets": {"sampling", "verify"},
    "sampling": {"nets", "verify"},
    "kernels": {"sampling", "verify"},
    "engine": {"targets", "drafters", "control", "verify", "nets", "checkpoints"},
    "checkpoints": {"sampling", "verify"},
}
SIBLINGS_APART = {2}

# Larger than the limit, by name and with a reason.
LONG_FILES: dict[str, str] = {}
LONG_FUNCTIONS: dict[str, str] = {}
MANY_ARGUMENTS: dict[str, str] = {
    "llm.py:__init__": "the public constructor: every option of the command line is a keyword here",
    "llm.py:load": "mirrors LLM.__init__",
    "nets/int8_rows.py:_tile": "a kernel takes its pointers and sizes one by one",
}

BANNED = re.compile(
    r"(?<![a-z])(assistant|verifier|base_model|candidates?|proposals?|gamma|speculate_k|ea_model|ea_layer)(?![a-z])"
)


def unit(path: Path) -> str:
    relative = path.relative_to(SRC)
    return relative.parts[0].removesuffix(".py")


def imports(path: Path) -> set[str]:
    """Units of the package a file imports anywhere in it; type-checking-only imports count too."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names = [a.name for a in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module] + [f"{node.module}.{a.name}" for a in node.names]
        else:
            continue
        found |= {n.split(".")[1] for n in names if n.startswith("slipstream.") and n.count(".") >= 1}
    return found & set(LAYER)


def functions(path: Path) -> list[ast.FunctionDef]:
    return [n for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]


def ids(path: Path) -> str:
    return str(path.relative_to(SRC))


def test_every_unit_has_a_layer() -> None:
    units = {unit(p) for p in FILES} - {"__init__", "__main__"}
    assert units <= set(LAYER), f"give these a layer: {sorted(units - set(LAYER))}"


@pytest.mark.parametrize("path", FILES, ids=ids)
def test_imports_go_downwards(path: Path) -> None:
    own = unit(path)
    if own in {"__init__", "__main__"}:
        return
    for other in imports(path) - {own}:
        assert LAYER[other] <= LAYER[own], f"{ids(path)} imports {other}, which lies above it"
        assert not (LAYER[other] == LAYER[own] and LAYER[own] in SIBLINGS_APART), (
            f"{ids(path)} imports its sibling {other}"
        )
        assert other not in MAY_NOT.get(own, set()), f"{own} must not import {other}"


@pytest.mark.parametrize("path", FILES, ids=ids)
def test_files_stay_small(path: Path) -> None:
    lines = len(path.read_text().splitlines())
    assert lines <= 500 or ids(path) in LONG_FILES, f"{ids(path)} has {lines} lines"


@pytest.mark.parametrize("path", FILES, ids=ids)
def test_functions_stay_small(path: Path) -> None:
    for function in functions(path):
        name = f"{ids(path)}:{function.name}"
        length = function.end_lineno - function.lineno + 1
        assert length <= 80 or name in LONG_FUNCTIONS, f"{name} has {length} lines"
        args = function.args
        count = len([a for a in args.posonlyargs + args.args + args.kwonlyargs if a.arg not in {"self", "cls"}])
        assert count <= 8 or name in MANY_ARGUMENTS, f"{name} has {count} arguments"
        assert depth(function) <= 4, f"{name} nests {depth(function)} levels"


def depth(node: ast.AST, level: int = 0) -> int:
    blocks = (ast.For, ast.While, ast.If, ast.With, ast.Try)
    deepest = level
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.ClassDef):
            continue
        # an elif is the same level as its if
        is_elif = (
            isinstance(node, ast.If) and isinstance(child, ast.If) and child in node.orelse and len(node.orelse) == 1
        )
        deepest = max(deepest, depth(child, level + (isinstance(child, blocks) and not is_elif)))
    return deepest


@pytest.mark.parametrize("path", FILES, ids=ids)
def test_identifiers_use_the_glossary(path: Path) -> None:
    tree = ast.parse(path.read_text())
    names = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name)}
    names |= {n.arg for n in ast.walk(tree) if isinstance(n, ast.arg)}
    names |= {n.name for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.ClassDef)}
    stored = [n for n in ast.walk(tree) if isinstance(n, ast.Attribute) and isinstance(n.ctx, ast.Store)]
    names |= {n.attr for n in stored}  # reading another library's attribute is not naming one
    wrong = {n for n in names if BANNED.search(n.lower())}
    assert not wrong, f"{ids(path)} uses {sorted(wrong)}; see the glossary in AGENTS.md"


def test_there_is_one_decode_loop() -> None:
    callers = [ids(p) for p in FILES if re.search(r"\.score\(", p.read_text()) and "Target" not in unit(p)]
    allowed = {"engine/engine.py"}
    # control/cost.py times passes and looks at nothing they say
    callers = [c for c in callers if not c.startswith(("targets/", "testing/", "measure/certify", "control/cost.py"))]
    assert set(callers) <= allowed, f"a second decode loop? {callers}"


def test_step_is_the_list_of_verbs() -> None:
    step = next(f for f in functions(SRC / "engine" / "engine.py") if f.name == "step")
    assert step.end_lineno - step.lineno + 1 <= 40
    source = ast.unparse(step)
    verbs = ["plan", "_draft", "_score", "laws", "rule", "_commit", "_emit"]
    places = [source.index(f"{v}(") for v in verbs]
    assert places == sorted(places)


def test_importing_the_package_loads_nothing_heavy() -> None:
    heavy = ("torch", "transformers", "numpy", "tokenizers")
    code = f"import sys, slipstream; print([m for m in {heavy} if m in sys.modules])"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()
    assert out == "[]"


def test_public_names() -> None:
    import slipstream

    assert set(slipstream.__all__) == {"LLM", "Completion", "RequestError", "SamplingParams", "WorkError", "load"}
    for name in slipstream.__all__:
        assert getattr(slipstream, name) is not None


def test_version_is_in_the_changelog() -> None:
    import slipstream

    assert f"## [{slipstream.__version__}]" in (ROOT / "CHANGELOG.md").read_text()


@pytest.mark.parametrize("path", [p for p in FILES if p.name != "__init__.py" or p.read_text().strip()], ids=ids)
def test_modules_say_what_they_are(path: Path) -> None:
    assert ast.get_docstring(ast.parse(path.read_text())), f"{ids(path)} has no module docstring"


def test_links_in_documents_resolve() -> None:
    for page in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]:
        for target in re.findall(r"\]\((?!https?:|#|mailto:)([^)#]+)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}, which is not there"

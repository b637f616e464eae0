"""The docs are what the code says now: the generated reference, the drafters' pages, their commands, their links."""

from __future__ import annotations

import itertools
import re
import shlex
from pathlib import Path
from xml.etree import ElementTree

import pytest

from slipstream import build, learned
from slipstream.checkpoints.layout_limits import LIMITS
from slipstream.checkpoints.layouts import LAYOUT_NAMES, LAYOUTS
from slipstream.cli import COMMANDS
from slipstream.cli.docs import PAGE, reference

DOCS = PAGE.parent
ROOT = DOCS.parent
PAGES = sorted([*ROOT.glob("*.md"), *DOCS.glob("**/*.md")])
COMMAND = re.compile(r"^    (slipstream .*?)(?:\s{2,}#.*)?$", re.MULTILINE)
LINK = re.compile(r"\]\(([^)\s]+)\)")
WRITTEN = [
    pytest.param(line, id=f"{page.relative_to(ROOT)}: {line}")
    for page in PAGES
    for line in COMMAND.findall(page.read_text(encoding="utf-8").replace("\\\n", ""))
]


def drafter_page(name: str) -> str:
    return (DOCS / "drafters" / f"{name}.md").read_text(encoding="utf-8")


def table_below(page: str, heading: str) -> list[list[str]]:
    """The cells of the first table below a heading, its head included."""
    lines = page.split(f"## {heading}\n", 1)[1].lstrip().split("\n\n", 1)[0].splitlines()
    rows = [re.split(r"(?<!\\)\|", line)[1:-1] for line in lines]
    return [[cell.strip() for cell in row] for row in rows if not row[0].strip().startswith("---")]


def test_reference_is_current() -> None:
    assert PAGE.read_text(encoding="utf-8") == reference(), "run `make docs`"


def test_reference_names_every_plug_in_and_option() -> None:
    page = reference()
    for words in ("`draft_model:PATH`", "`coupled`", "`hf`", "`smollm2-135m-instruct`", "--repetition-penalty"):
        assert words in page


def test_the_drafter_table_has_every_drafter_and_no_empty_cell() -> None:
    head, *rows = table_below(reference(), "Drafters")
    assert [re.findall(r"`(\w+)", row[0])[0] for row in rows] == list(build.DRAFTERS)
    assert all(len(row) == len(head) and all(row) for row in rows)


def test_the_drafter_table_has_every_option_with_its_default_and_the_length_that_auto_goes_up_to() -> None:
    head, *rows = table_below(reference(), "Drafters")
    options, most = head.index("options and defaults"), head.index("most per round")
    said = {re.findall(r"`(\w+)", row[0])[0]: row for row in rows}
    for name, plug in build.DRAFTERS.items():
        named = [word.partition("=")[0] for word in re.findall(r"`([^`]+)`", said[name][options])]
        assert tuple(named) == plug.options, name
        assert said[name][most].endswith(str(plug.most or plug.draft_tokens)), name
    assert "`max_ngram=8`" in said["lookup"][options]
    assert "`head_ids=65536`" in said["draft_model"][options]
    assert (said["lookup"][most], said["draft_model"][most]) == ("15", "8")


def test_the_table_of_layouts_says_what_is_read_and_written() -> None:
    head, *rows = table_below(reference(), "Layouts of learned drafters")
    assert head == ["layout", *learned.ALGORITHMS]
    assert [row[0] for row in rows] == [f"`{name}`" for name in LAYOUT_NAMES]
    said = {
        (name, kind): row[1 + i]
        for name, row in zip(LAYOUT_NAMES, rows, strict=True)
        for i, kind in enumerate(head[1:])
    }
    assert {pair for pair, cell in said.items() if "read" in cell} == {(o.name, o.algorithm) for o in LAYOUTS}
    assert {pair for pair, cell in said.items() if "write" in cell} == set(LIMITS)


@pytest.mark.parametrize("name", build.DRAFTERS)
def test_every_drafter_has_a_page_with_a_picture_its_options_and_its_layouts(name: str) -> None:
    page, plug = drafter_page(name), build.DRAFTERS[name]
    assert page.startswith(f"# {name}")
    assert f"drafters/{name}.md" in (DOCS / "drafters.md").read_text(encoding="utf-8")
    assert name == "none" or f"pictures/{name}.svg" in page
    for option in plug.options:
        assert f"\n| `{option}` |" in page, f"{name}: option {option} is not explained"
    if plug.learned:
        layouts = page.split("**Layouts.**")[1].split("**Exactness.**")[0]
        for layout in {o.name for o in LAYOUTS if o.algorithm == name}:
            assert f"`{layout}`" in layouts, f"{name}: layout {layout} is not named"


@pytest.mark.parametrize("line", WRITTEN)
def test_commands_in_the_docs_are_commands(line: str) -> None:
    words = shlex.split(line)
    if words[1].isupper():  # slipstream COMMAND --help
        return
    assert words[1] in COMMANDS
    specs = [value for flag, value in itertools.pairwise(words) if flag == "--drafter"]
    for spec in [part for spec in specs for part in (spec.split(",") if words[1] == "bench" else [spec])]:
        if spec in ("DIR", "PATH"):
            continue
        choice = build.parse_drafter(spec)
        assert set(choice.options) <= set(build.DRAFTERS[choice.name].options), spec


def test_links_and_pictures_resolve() -> None:
    broken = []
    for page in PAGES:
        for link in LINK.findall(page.read_text(encoding="utf-8")):
            if link.startswith(("http://", "https://")):
                continue
            path, _, place = link.partition("#")
            there = page if not path else page.parent / path
            if not there.exists() or (place and place not in anchors(there)):
                broken.append(f"{page.relative_to(ROOT)}: {link}")
    assert not broken


def anchors(page: Path) -> set[str]:
    """The places of a page that can be linked to, spelled as on GitHub."""
    heads = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


@pytest.mark.parametrize("picture", sorted((DOCS / "pictures").glob("*.svg")), ids=lambda p: p.stem)
def test_pictures_are_well_formed_and_have_a_ground_of_their_own(picture: Path) -> None:
    root = ElementTree.fromstring(picture.read_text(encoding="utf-8"))
    assert root.get("aria-label")
    ground = next(e for e in root.iter("{http://www.w3.org/2000/svg}rect"))
    width, height = (float(root.get(side, "0")) for side in ("width", "height"))
    assert float(ground.get("width", "0")) >= width - 2
    assert float(ground.get("height", "0")) >= height - 2

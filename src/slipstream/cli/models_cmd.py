"""`slipstream models`: list the catalogue, pull a model, print where one lies."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict

from slipstream.cli.options import Parser


def declare(parser: argparse.ArgumentParser) -> None:
    """Declare list, pull and path."""
    commands = parser.add_subparsers(dest="action", required=True, metavar="list|pull|path", parser_class=Parser)
    listing = commands.add_parser("list", help="names, sizes, what is pulled, what each is for")
    listing.add_argument("--json", action="store_true", help="one JSON object on stdout")
    pull = commands.add_parser("pull", help="fetch a model and make an ordinary model folder of it")
    pull.add_argument("name")
    path = commands.add_parser("path", help="print the folder of a model that is here")
    path.add_argument("name")


def run(args: argparse.Namespace) -> int:
    """Run the command and return its exit status."""
    from slipstream import models

    if args.action == "pull":
        print(models.pull(args.name, progress=True))
    elif args.action == "path":
        print(_path(args.name))
    else:
        _list(args.json)
    return 0


def _path(name: str) -> str:
    from slipstream import models
    from slipstream.types import RequestError

    for info in models.listing():
        if info.name == name and info.folder is None:
            raise RequestError(f"model {name!r} is not pulled yet; run: slipstream models pull {name}")
    return str(models.resolve(name))


def _list(as_json: bool) -> None:
    from slipstream import models

    infos = models.listing()
    if as_json:
        print(
            json.dumps({"models": [asdict(info) | {"pulled": info.folder is not None} for info in infos]}, default=str)
        )
        return
    cells = [["name", "download", "on disk", "pulled", "license", "use"]]
    for m in infos:
        there = "no" if m.folder is None else "yes" if m.codes else "without its codes"
        cells.append([m.name, _size(m.download), _size(m.disk), there, m.license, m.use])
    widths = [max(len(row[k]) for row in cells) for k in range(len(cells[0]))]
    for row in cells:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def _size(count: int) -> str:
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:.0f} MB"

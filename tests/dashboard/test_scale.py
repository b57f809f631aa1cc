"""10,000 locks, a grant in another process, and 1,000 events per second.

Figures are printed, not asserted: other programs run on the same machine.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from playwright.sync_api import Page, expect

import lockfast
from tests.dashboard import chromium
from tests.servers.lockserver import ServerProcess, ServerThread

Open = Callable[..., Page]
Record = Callable[[str, object], None]
LOCKS = 10_000
GRANTS = 20
EVENTS_S = 4.0

GRANT = """
import sys, time, lockfast
with lockfast.connect(sys.argv[1], owner="elsewhere") as client:
    leases = []
    for n in range(int(sys.argv[2])):
        sys.stdin.readline()
        at = time.time()
        leases.append(client.lock(f"latency/{n}").acquire())
        print(at, flush=True)
    sys.stdin.readline()
    for lease in leases:
        lease.release()
"""
CHURN = """
import sys, time, lockfast
with lockfast.connect(sys.argv[1], owner="busy") as client:
    pairs, begin = 0, time.monotonic()
    until = begin + float(sys.argv[2])
    while time.monotonic() < until:
        client.lock(f"churn/{pairs % 50}").acquire().release()
        pairs += 1
        ahead = pairs / 500 - (time.monotonic() - begin)
        if ahead > 0:
            time.sleep(ahead)
    print(pairs / (time.monotonic() - begin), flush=True)
    client.lock("churn/over").acquire()
    sys.stdin.readline()
"""
WATCH = """async () => {
    const { picture } = await import("/dashboard/static/picture.js");
    globalThis.seen = {};
    picture.subscribe(() => {
        for (const link of document.querySelectorAll(".rows .row:not([hidden]) .lock-link")) {
            globalThis.seen[link.textContent] ??= Date.now();
        }
    });
}"""
TIMINGS = "import('/dashboard/static/picture.js').then(({ picture }) => picture.timings)"


def start(script: str, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", script, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def test_ten_thousand_locks(open_page: Open, tmp_path: Path, record_property: Record) -> None:
    """Only visible rows exist; search, sorting, scrolling to the end and updates work."""
    store = f"memory://{tmp_path}"
    with ServerThread(store) as server, lockfast.connect(store, owner="many") as client:
        leases = [client.lock(f"orders/{n % 100:02d}/{n:05d}").acquire() for n in range(LOCKS)]
        page = open_page(server.base)
        expect(page.get_by_text("10,000 locks", exact=True)).to_be_visible()
        table = page.get_by_role("table", name="Locks in use")
        expect(table).to_have_attribute("aria-rowcount", str(LOCKS + 1))
        assert page.locator(".rows .row").count() < 60
        page.get_by_role("link", name="orders/00/00000").focus()
        page.keyboard.press("End")
        expect(page.get_by_role("link", name="orders/99/09999")).to_be_focused()
        page.keyboard.press("Home")
        page.evaluate(f"{TIMINGS}.then((timings) => {{ timings.length = 0; }})")
        for n in range(20):
            with client.lock(f"orders/00/new-{n}"):
                expect(page.get_by_text("10,001 locks", exact=True)).to_be_visible()
            expect(page.get_by_text("10,000 locks", exact=True)).to_be_visible()
        timings: list[float] = page.evaluate(TIMINGS)
        page.get_by_role("searchbox").fill("/04321")
        expect(page.get_by_text("1 of 10,000 locks")).to_be_visible()
        page.get_by_role("searchbox").fill("")
        page.get_by_role("button", name="Waiting").click()
        expect(table.get_by_role("columnheader", name="Waiting")).to_have_attribute(
            "aria-sort", "descending"
        )
        for lease in leases:
            lease.release()
        expect(page.get_by_text("No lock is held, and nobody waits.")).to_be_visible()
    assert len(timings) >= 20
    what = f"dashboard, {LOCKS} locks: an update in the browser (median; aim < 100; {load()})"
    record_property(f"measured {what}", f"{statistics.median(timings):.1f} ms")
    record_property(f"measured {what.replace('median', 'longest')}", f"{max(timings):.1f} ms")


def test_from_a_grant_to_its_row(open_page: Open, tmp_path: Path, record_property: Record) -> None:
    """A grant in another process appears as a row; how long that takes is printed."""
    store = f"sqlite://{tmp_path}/locks.db"
    with ServerProcess(store, tmp_path, "--insecure-dev") as server:
        page = open_page(server.url)
        page.get_by_text("Live", exact=True).wait_for()
        page.evaluate(WATCH)
        times: list[float] = []
        with start(GRANT, store, str(GRANTS)) as other:
            assert other.stdin is not None
            assert other.stdout is not None
            for n in range(GRANTS):
                other.stdin.write("go\n")
                other.stdin.flush()
                asked_s = float(other.stdout.readline())
                expect(page.get_by_role("link", name=f"latency/{n}", exact=True)).to_be_visible()
                shown_ms: float = page.evaluate(f"globalThis.seen['latency/{n}']")
                times.append(shown_ms - asked_s * 1000)
            other.stdin.write("over\n")
        assert other.returncode == 0
    what = f"dashboard: a grant in another process to its row (median; aim < 150; {load()})"
    record_property(f"measured {what}", f"{statistics.median(times):.1f} ms")


def test_a_thousand_events_per_second(
    open_page: Open, tmp_path: Path, record_property: Record
) -> None:
    """The page keeps up and shows the last event; the cost is printed."""
    store = f"sqlite://{tmp_path}/locks.db"
    with ServerProcess(store, tmp_path, "--insecure-dev") as server:
        page = open_page(f"{server.url}/#/events")
        page.get_by_text("Live", exact=True).wait_for()
        browser = browser_processes()
        assert len(browser) > 2  # the browser itself, a renderer, and others
        before_s, begin_s = cpu_s(browser), time.monotonic()
        with start(CHURN, store, str(EVENTS_S)) as other:
            assert other.stdin is not None
            assert other.stdout is not None
            rate = 2 * float(other.stdout.readline())
            spent_s = cpu_s(browser) - before_s
            took_s = time.monotonic() - begin_s
            expect(page.get_by_role("row").filter(has_text="churn/over").first).to_be_visible()
            other.stdin.write("over\n")
    what = f"dashboard, {rate:.0f} events/s for {took_s:.1f} s: the browser (aim < 1; {load()})"
    record_property(f"measured {what}", f"{spent_s / took_s:.2f} cores")


def browser_processes() -> list[int]:
    """Return the browser's processes that this process has started, renderers included."""
    found, todo = [], [os.getpid()]
    while todo:
        tasks = Path(f"/proc/{todo.pop()}/task")
        for children in tasks.glob("*/children"):
            todo += map(int, children.read_text().split())
            found += [pid for pid in map(int, children.read_text().split()) if is_browser(pid)]
    return found


def is_browser(pid: int) -> bool:
    return os.readlink(f"/proc/{pid}/exe") == str(chromium.HOME / "chromium")


def cpu_s(processes: list[int]) -> float:
    """Return the CPU time of processes, over all their threads."""
    ticks = 0
    for pid in processes:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def load() -> str:
    return f"load {os.getloadavg()[0]:.1f}"

"""At most ten calls to an API at a time, over all processes of all hosts.

Run it in many shells: LOCKFAST_URL=redis://localhost python examples/stories/rate_limit.py
"""

import sys
import time
from concurrent.futures import ThreadPoolExecutor

import lockfast


def call_api(n: int) -> None:
    began = time.monotonic()
    time.sleep(0.01)  # the call
    sys.stdout.write(f"call {n}: {began:.6f} to {time.monotonic():.6f}\n")  # one write per line


with lockfast.connect(ttl=10) as client:
    api = client.semaphore("partner-api", limit=10)

    def limited(n: int) -> None:
        with api:
            call_api(n)

    with ThreadPoolExecutor(25) as pool:
        list(pool.map(limited, range(int(sys.argv[1]) if len(sys.argv) > 1 else 50)))

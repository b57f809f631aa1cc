"""One scheduler leads, the others stand by and take over when it dies.

Run it in several shells, and kill the one that leads:
LOCKFAST_URL=redis://localhost python examples/stories/leader.py HOST
"""

import sys

import lockfast

host = sys.argv[1] if len(sys.argv) > 1 else "host-1"

with lockfast.connect(ttl=2) as client:
    print(f"{host} is a candidate", flush=True)
    with client.election("scheduler").campaign(value=host) as term:
        print(f"{host} leads, epoch {term.epoch}", flush=True)
        # Schedule until the term is over; a leader that lost its lease must stop at once.
        term.lost.wait()
    print(f"{host} does not lead any more", flush=True)

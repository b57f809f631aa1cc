"""`lockfast playground`: locks, faults and fencing to look at, for talks and for learning.

    browser ── panel.js ──► endpoints ──► Scene ──► Worker A, B, C …   shipped clients in threads
                 ▲                          │           │ faults: pause, crash, clock, cut off
                 └──── one SSE stream ◄─────┤           ▼
                                            │       MemoryTable        the lock
                                            └─────► Resource × 2       fenced and unfenced

Workers are ordinary clients of the shipped code. Faults are injected where a client touches the
world: its clock, its waiting, its requests and its wakes. So what the page shows is what the
product does, and nothing on it is acted.

| module | what it does |
|---|---|
| `faults` | the faults of one worker, and a clock that may run wrong |
| `store` | a worker's access to the lock table, with its faults |
| `resources` | what workers write to: with and without a guard |
| `worker` | a client that acquires, works, writes and releases, for ever |
| `record` | what happened, for the timeline |
| `drawing` | the timeline as SVG |
| `scene` | workers, resources and settings; commands, and the state for the page |
| `story` | the classic failure, step by step |
| `panel` | the endpoints and files that a server adds to its dashboard |
| `running` | the server of `lockfast playground` |
"""

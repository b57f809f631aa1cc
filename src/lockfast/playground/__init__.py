"""`lockfast playground`: locks, faults and fencing made visible, for talks and for learning.

    browser ── panel.js ──► endpoints ──► Scene ──► Worker A, B, C …   shipped clients in threads
                 ▲                          │           │ faults: pause, crash, clock, cut off
                 └──── one SSE stream ◄─────┤           ▼
                                            │       MemoryTable        the lock
                                            └─────► Resource × 2       fenced and unfenced

Workers are ordinary clients of the shipped code. Faults are injected where a client touches the
world: its clock, its waiting, its requests and its wakes. So the page shows what the product
really does; nothing is staged.

| module | what it does |
|---|---|
| `faults` | the faults of one worker, and a clock with a wrong rate |
| `store` | a worker's access to the lock table, with its faults |
| `resources` | what workers write to: with and without a guard |
| `worker` | a client that acquires, works, writes and releases, forever |
| `record` | the claims and faults of a scene, for the timeline |
| `drawing` | the timeline as SVG |
| `scene` | workers, resources and settings; commands, and the state for the page |
| `story` | the classic failure, step by step |
| `panel` | the endpoints and files that a server adds to its dashboard |
| `running` | the server of `lockfast playground` |
"""

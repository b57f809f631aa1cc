"""The dashboard: the page at `/` of a lock server.

    store ──► Reader ──► Picture ──► deltas ──► one SSE stream per browser
              (one per              (shared)    (filtered by rights)
               namespace)

One reader per namespace follows the store's event log and reads locks and sessions in portions,
however many browsers are connected. It starts with the first stream and stops some time after the
last one. Browsers get the whole picture once and then its changes, at most ten times a second.

| module | what it does |
|---|---|
| `routes` | the addresses: page, login, stream, one lock, wait graph |
| `reader` | follows the store and keeps the picture up to date |
| `picture` | the locks and sessions of a namespace, and the deltas between its versions |
| `history` | the events of the last hour and the figures computed from them |
| `stream` | what one browser gets: a snapshot or the missed deltas, then updates |
| `drawings` | the timeline of a lock and the wait graph, as SVG |
| `panels` | how another part of the product adds a panel to the page |
| `static/` | the page: ES modules and style sheets, served as they are |

The page is public and contains no data. Its data needs a login (`server/logins.py`) or any other
credential that the API accepts, and everything is filtered by rights, as in the API.
"""

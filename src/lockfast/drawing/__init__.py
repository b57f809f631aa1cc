"""What all pages that Lockfast draws have in common: `lockfast report`, the pages of the
simulator and of `check`, and the dashboard of the lock server.

| module | what it draws |
|---|---|
| `style.css` | colours and type; the palette is safe for colour-blind readers, in light and dark |
| `page` | a whole document, tables, legends |
| `shapes` | a scale of time with its axis, and the shapes of leases, waits and losses |
| `timeline` | claims at one lock over time |
| `graph` | who waits for which lock, and who holds it |

A page is one HTML file with everything in it: no script, no font, no image from elsewhere. The
dashboard serves the same style sheet and shows the same SVG. Its content security policy allows
no `style` attributes, so shapes are coloured by classes.
"""

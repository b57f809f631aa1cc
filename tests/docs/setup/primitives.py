# What the pages in docs/primitives/ take for granted: a client.
import lockfast

client = lockfast.connect("memory://primitives-pages")

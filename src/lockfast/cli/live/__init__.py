"""The live view of `lockfast top`: what is shown (`model`), where it comes from (`feed`), and
how it looks (`app`). Needs the extra `cli`."""

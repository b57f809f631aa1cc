"""The public API in two thin variants with the same names: `blocking` and `aio`."""

"""The public face, twice: `blocking` and `aio`, thin and alike."""

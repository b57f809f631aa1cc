"""The stores, one module each; `registry` knows which URL scheme belongs to which."""

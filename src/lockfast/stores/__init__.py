"""The stores; `registry` maps URL schemes to them."""

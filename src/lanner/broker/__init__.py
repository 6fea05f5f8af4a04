"""A running broker: `node` is its life, `steward` decides what it holds, `service` is what doors call."""

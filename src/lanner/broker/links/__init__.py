"""Other brokers: finding them, the lines to them, and what arrives on those."""

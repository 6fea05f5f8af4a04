"""What a broker holds: replicas, the engine that drives them with one journal, snapshots. No socket, no clock."""

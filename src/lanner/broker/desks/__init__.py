"""What callers may ask of this broker, for the partitions it leads; everybody else is told who leads."""

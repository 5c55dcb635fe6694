"""Run: programs on hosts, under a driver."""

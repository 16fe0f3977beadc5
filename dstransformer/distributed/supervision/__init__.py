"""What guards a run of several processes: heartbeats, failure detection, stop signals, logs and the run lock."""

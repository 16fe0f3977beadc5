"""Full disks and damaged files."""

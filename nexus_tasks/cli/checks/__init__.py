"""What ``nexus doctor`` looks at."""

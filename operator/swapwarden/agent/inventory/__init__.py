"""The cgroups that exist, kept in step with the disk."""

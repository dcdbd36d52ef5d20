"""`kubectl swap policy`: change the policy of a workload or a namespace."""

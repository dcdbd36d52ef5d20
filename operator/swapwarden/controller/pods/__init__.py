"""Pods: each gets a condition that shows whether its policy is enforced; their wait for a limit is measured."""

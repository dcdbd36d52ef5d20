"""Linux in a VM: one with a kernel alone, one with a whole node."""

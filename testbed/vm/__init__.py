"""Linux in a VM: one with nothing but a kernel, one that is a whole node."""

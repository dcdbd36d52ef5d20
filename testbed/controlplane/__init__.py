"""A real etcd, kube-apiserver and controller manager, and the programs that they and others are."""

"""A real etcd, kube-apiserver and controller manager, and the programs for them and others."""

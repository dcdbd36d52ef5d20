"""A node's part without a kubelet: pods and cgroups as a kubelet makes them."""

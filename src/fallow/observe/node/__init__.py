"""One node: what its driver, kernel and kubelet say of processes and pods."""

"""The NVIDIA driver through its library: `driver` is the gate, `processes` reads its lists of processes."""

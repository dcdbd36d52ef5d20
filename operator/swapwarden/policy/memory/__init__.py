"""Pure decisions on memory.min, memory.low and memory.high: Swapwarden's numbers, and the kubelet's."""

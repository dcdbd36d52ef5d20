"""Check and complete a new pod: its annotations, its place, and the plugins that its containers need."""

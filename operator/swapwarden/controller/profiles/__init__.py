"""Profiles: kopf follows their life; rollouts admit nodes; their status and past generations are kept."""

"""NodeSwapProfiles as decisions use them: compiled, selected, their overrides and requirements."""

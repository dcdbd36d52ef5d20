"""Commands for users and for the chart's hooks: plan, profiles, uninstall, and kubectl swap."""

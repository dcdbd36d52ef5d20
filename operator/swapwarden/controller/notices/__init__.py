"""What people are told about their objects by Events: decided here, purely, and posted by whoever asked."""

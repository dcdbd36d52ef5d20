"""The only code that touches /proc, /sys, /etc and inotify: bounded, with typed errors and without policy."""

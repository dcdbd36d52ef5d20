"""What all of the testbed stands on: processes that end with it, what this machine has, the cache, words for people."""

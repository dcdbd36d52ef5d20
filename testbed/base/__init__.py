"""The testbed's foundation: processes that end with it, this machine's abilities, the cache, messages to people."""

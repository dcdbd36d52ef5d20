"""Development tools: generators of files that are checked in, checks, tools of the documentation."""

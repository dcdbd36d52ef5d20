"""What is run while developing: generators of files that are checked in, checks, tools of the documentation."""

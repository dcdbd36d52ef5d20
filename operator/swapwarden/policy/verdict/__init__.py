"""Judge pods and nodes, by one table of rules each, with the words for every reason."""

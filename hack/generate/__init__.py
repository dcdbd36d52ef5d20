"""Files that are made from the code and checked in."""

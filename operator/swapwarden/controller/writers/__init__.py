"""The writes of the controller: one module for each collection, and no other part of the controller writes to it."""

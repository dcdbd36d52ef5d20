"""The known objects of the cluster: rows in, changes out. No client, no clock, no decision."""

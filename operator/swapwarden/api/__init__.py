"""The API between users and the parts of Swapwarden: names, values and the two kinds."""
